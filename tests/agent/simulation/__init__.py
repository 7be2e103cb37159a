"""Tests of `agent.simulation`."""
