"""Tests of `agent.routers.cascade`."""
