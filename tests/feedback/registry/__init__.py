"""Tests of `feedback.registry`."""
