"""Tests of `armwise.agent.learning`."""
