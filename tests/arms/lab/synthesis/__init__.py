"""Tests of `armwise.arms.lab.synthesis`."""
