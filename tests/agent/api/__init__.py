"""Tests of `agent.api`."""
