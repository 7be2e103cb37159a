"""Tests of `armwise.arms.more.generative`."""
