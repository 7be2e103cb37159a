"""Tests of agent.checks."""
