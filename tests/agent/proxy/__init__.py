"""Tests of agent.proxy."""
