"""Tests of what a process tells of its work."""
