"""Tests of `feedback.exchange`."""
