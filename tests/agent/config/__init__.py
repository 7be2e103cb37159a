"""Tests of `armwise.agent.config`."""
