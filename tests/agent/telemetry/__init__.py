"""Tests of `agent.telemetry`."""
