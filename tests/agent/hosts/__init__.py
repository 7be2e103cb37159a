"""Tests of agent.hosts."""
