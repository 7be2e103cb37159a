"""Tests of armwise.agent.checks."""
