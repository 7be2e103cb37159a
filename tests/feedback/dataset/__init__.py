"""Tests of `armwise.feedback.dataset`."""
