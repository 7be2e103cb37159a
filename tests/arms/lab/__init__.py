"""Tests of `armwise.arms.lab`."""
