"""Tests of `arms.models`."""
