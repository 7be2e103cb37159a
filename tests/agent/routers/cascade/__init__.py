"""Tests of `armwise.agent.routers.cascade`."""
