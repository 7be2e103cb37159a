"""What a release keeps: snapshots of its contract, the comparison with them, and the check before a tag.

`python -m tests.release write` stores the contract of this version, `compare` prints what breaks that of an
earlier one, `check` prints what is missing for a release, and `notes` writes its notes.
"""
