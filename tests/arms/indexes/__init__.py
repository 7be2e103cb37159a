"""Tests of `arms.indexes`."""
