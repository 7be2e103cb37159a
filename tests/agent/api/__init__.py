"""Tests of `armwise.agent.api`."""
