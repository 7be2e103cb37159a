"""Tests of `armwise.agent.lab.routers.cascade`."""
