"""Tests of `agent.serving`."""
