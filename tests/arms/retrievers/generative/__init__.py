"""Tests of `arms.retrievers.generative`."""
