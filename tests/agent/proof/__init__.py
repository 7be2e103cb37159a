"""Tests of `armwise.agent.proof`."""
