"""Tests of `armwise.agent.offline`."""
