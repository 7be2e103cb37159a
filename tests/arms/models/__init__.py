"""Tests of `armwise.arms.models`."""
