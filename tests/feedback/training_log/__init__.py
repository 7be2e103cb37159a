"""Tests of `armwise.feedback.training_log`."""
