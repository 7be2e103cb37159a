"""Tests of armwise.agent.proxy."""
