"""Tests of `feedback.ope`."""
