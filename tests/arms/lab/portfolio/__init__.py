"""Tests of `armwise.arms.lab.portfolio`."""
