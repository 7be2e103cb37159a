"""Tests of `arms`."""
