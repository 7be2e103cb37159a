"""Tests of `armwise.arms.indexes`."""
