"""Another user of this machine, as an attacker: `nobody`, who owns nothing and is in no group.

Root alone can become that user; where the tests run as somebody else, `exposed` looks at the permissions.
"""

import os
import stat
import subprocess
import sys
from pathlib import Path

NOBODY = 65534

AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
"""Words before a command, for root, by which that user runs it."""

IS_ROOT = os.geteuid() == 0

USUAL = 0o022
"""The umask of most users: what they make, others can read."""


def exposed(folder: Path) -> list[str]:
    """Return what other users may read or change in a folder, itself included, by permissions."""
    places = [folder, *folder.rglob("*")]
    wide = [place for place in places if not place.is_symlink() and place.lstat().st_mode & 0o077]
    return [f"{place} {stat.filemode(place.lstat().st_mode)}" for place in wide]


def nobody_may_run(python: str) -> bool:
    """Return whether that user may run a Python: it may be in a home that is closed to others."""
    tried = [*AS_NOBODY, "sh", "-c", '"$0" -c ""', python]
    return IS_ROOT and subprocess.run(tried, capture_output=True, check=False).returncode == 0


BECOME = (
    f"import os, socket, sys; os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY}); p = sys.argv[1:]; "
)
TRIES = {
    "list": "os.listdir(p[0])",
    "read": "open(p[0], 'rb').read(1)",
    "change": "open(p[0], 'a')",
    "rename": "os.rename(p[0], p[0] + '.old')",
    "replace": "os.mkdir(p[0] + '.new'); os.rmdir(p[0] + '.new')",  # as a place beside it is a place for it
    "connect": "socket.socket(socket.AF_UNIX).connect(p[0])",
}


def refused(attempt: str, place: Path) -> bool:
    """Return whether a user who owns nothing, and is in no group, is refused by the permissions."""
    command = [sys.executable, "-c", BECOME + TRIES[attempt], str(place)]
    tried = subprocess.run(command, capture_output=True, text=True, check=False)
    assert tried.returncode == 0 or "PermissionError" in tried.stderr, tried.stderr
    return tried.returncode != 0
