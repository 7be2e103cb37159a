"""Tests of `armwise.feedback.registry`."""
