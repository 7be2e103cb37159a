"""Tests of `armwise.agent.simulation`."""
