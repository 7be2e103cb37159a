"""Evaluate: what other policies would have earned, from the log; `evaluate.py` is where it begins."""
