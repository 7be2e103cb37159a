"""Tests of `armwise.agent.warmstart`."""
