"""Tests of `feedback.training_log`."""
