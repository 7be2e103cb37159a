"""Tests of `agent.warmstart`."""
