"""Tests of `feedback.log`."""
