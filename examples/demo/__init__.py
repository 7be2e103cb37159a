"""The whole loop, shown on one page; `demonstrate.py` is where it begins."""
