"""Tests of `comparison`."""
