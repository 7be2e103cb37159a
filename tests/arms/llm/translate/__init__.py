"""Tests of `armwise.arms.llm.translate`."""
