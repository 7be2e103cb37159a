"""Bandit policies that learn; each returns a distribution and never samples."""
