"""Warm starts: labels become a candidate, a verdict, and a promotion or none; `run.py` is one run."""
