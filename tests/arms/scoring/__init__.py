"""Tests of `armwise.arms.scoring`."""
