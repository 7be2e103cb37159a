"""Tests of `agent.routers`."""
