"""Behaviour of the three packages, stated one sentence a test."""
