"""Tests of `armwise.arms.relevance`."""
