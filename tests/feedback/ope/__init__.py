"""Tests of `armwise.feedback.ope`."""
