"""Tests of `arms.jobs`."""
