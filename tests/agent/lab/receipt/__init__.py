"""Tests of `armwise.agent.lab.receipt`."""
