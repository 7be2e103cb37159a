"""Tests of `agent.cli`."""
