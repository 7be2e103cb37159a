"""Tests of `armwise.agent.lab.warmstart`."""
