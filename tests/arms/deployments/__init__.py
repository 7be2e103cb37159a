"""Tests of arms.deployments."""
