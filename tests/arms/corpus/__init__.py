"""Tests of `armwise.arms.corpus`."""
