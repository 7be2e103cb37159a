"""Tests of `feedback.drift`."""
