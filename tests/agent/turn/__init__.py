"""Tests of `armwise.agent.turn`."""
