"""Tests of `arms.relevance`."""
