"""Tests of `agent.learning`."""
