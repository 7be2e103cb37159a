"""Tests of `armwise.agent.routers`."""
