"""Tests of `arms.scoring`."""
