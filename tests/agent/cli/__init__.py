"""Tests of `armwise.agent.cli`."""
