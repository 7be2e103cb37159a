"""Tests of `agent.jobs`."""
