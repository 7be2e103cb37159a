"""What a release keeps: snapshots of its contract, and the comparison with them.

`python -m tests.release write` stores the contract of this version, `compare` prints what breaks that of an
earlier one.
"""
