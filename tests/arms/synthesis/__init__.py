"""Tests of `armwise.arms.synthesis`."""
