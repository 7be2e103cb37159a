"""Tests of `agent.policies`."""
