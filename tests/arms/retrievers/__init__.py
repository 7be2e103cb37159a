"""Tests of `arms.retrievers`."""
