"""Tests of armwise.arms.deployments."""
