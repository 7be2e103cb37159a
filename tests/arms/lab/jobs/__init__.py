"""Tests of `armwise.arms.lab.jobs`."""
