"""Tests of `armwise.agent.evaluation`."""
