"""Tests of `agent.config`."""
