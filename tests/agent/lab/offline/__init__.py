"""Tests of `armwise.agent.lab.offline`."""
