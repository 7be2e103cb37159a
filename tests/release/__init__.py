"""The check before a tag: `python -m tests.release` prints what a release lacks, or writes its notes."""
