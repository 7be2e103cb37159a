"""Tests of `armwise.agent.policies`."""
