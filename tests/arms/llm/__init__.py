"""Tests of `arms.llm`."""
