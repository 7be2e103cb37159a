"""Tests of `agent.evaluation`."""
