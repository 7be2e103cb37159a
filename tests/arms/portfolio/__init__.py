"""Tests of `armwise.arms.portfolio`."""
