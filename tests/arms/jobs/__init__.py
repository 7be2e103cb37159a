"""Tests of `armwise.arms.jobs`."""
