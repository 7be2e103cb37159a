"""Tests of `armwise.arms.llm`."""
