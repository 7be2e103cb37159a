"""Tests of `armwise.arms.more`."""
