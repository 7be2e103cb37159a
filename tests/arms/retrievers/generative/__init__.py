"""Tests of `armwise.arms.retrievers.generative`."""
