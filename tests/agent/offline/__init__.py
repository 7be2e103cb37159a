"""Tests of `agent.offline`."""
