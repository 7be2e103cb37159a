"""Tests of `armwise.feedback.drift`."""
