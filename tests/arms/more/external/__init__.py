"""Tests of arms of other protocols and frameworks."""
