"""Tests of `feedback`."""
