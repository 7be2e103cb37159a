"""Tests of `armwise.agent.lab`."""
