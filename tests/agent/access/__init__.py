"""Tests of keys, projects, limits and host names."""
