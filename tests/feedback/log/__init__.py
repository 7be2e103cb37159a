"""Tests of `armwise.feedback.log`."""
