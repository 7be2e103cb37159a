"""Tests of `arms.synthesis`."""
