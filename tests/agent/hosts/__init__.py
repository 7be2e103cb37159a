"""Tests of armwise.agent.hosts."""
