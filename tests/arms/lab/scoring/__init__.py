"""Tests of `armwise.arms.lab.scoring`."""
