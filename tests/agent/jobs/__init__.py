"""Tests of `armwise.agent.jobs`."""
