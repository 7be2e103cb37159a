"""Tests of `feedback.dataset`."""
