"""Tests of `armwise.arms.retrievers`."""
