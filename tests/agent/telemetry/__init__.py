"""Tests of `armwise.agent.telemetry`."""
