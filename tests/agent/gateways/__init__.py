"""Tests of `armwise.agent.gateways`."""
