"""Tests of `armwise.agent.serving`."""
