"""Tests of `arms.corpus`."""
