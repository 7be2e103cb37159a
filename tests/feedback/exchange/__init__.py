"""Tests of `armwise.feedback.exchange`."""
