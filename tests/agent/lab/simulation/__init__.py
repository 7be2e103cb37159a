"""Tests of `armwise.agent.lab.simulation`."""
