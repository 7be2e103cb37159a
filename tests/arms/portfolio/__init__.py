"""Tests of `arms.portfolio`."""
