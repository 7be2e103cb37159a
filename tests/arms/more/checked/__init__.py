"""Tests of checked arms."""
