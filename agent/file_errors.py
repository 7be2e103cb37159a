"""What is wrong with a file or a folder, in words: which place, and what would be right."""

import errno
import os
from pathlib import Path


def describe_file_error(error: OSError) -> str:
    """Return why the file or the folder of an error cannot be used, and what would be right.

    Args:
        error: An error of the system; one that names no file keeps its message.

    >>> describe_file_error(IsADirectoryError(errno.EISDIR, "Is a directory", "/"))
    'a folder is there, and a file is needed: move it away, or name another place'
    """
    if error.filename is None:
        return str(error)
    place = Path(os.fsdecode(error.filename)) if not isinstance(error.filename, int) else Path("/dev/fd")
    there = find_existing(place)
    match error.errno:
        case errno.EISDIR:
            return "a folder is there, and a file is needed: move it away, or name another place"
        case errno.EEXIST | errno.ENOTDIR if not there.is_dir():
            return describe_file_for_folder(there)
        case errno.EACCES:
            return describe_closed(there)
        case errno.EPERM:
            return f"the file system of {there}, or an attribute of it, forbids that: name another place"
        case errno.EROFS:
            return "its file system can only be read: name another place"
        case errno.ENOSPC | errno.EDQUOT:
            return "its disk, or a quota of it, is full: free space, or name another place"
    return error.strerror or str(error)


def find_existing(place: Path) -> Path:
    """Return the place itself, or the nearest folder or file above it that exists."""
    return next(each for each in (place, *place.absolute().parents) if os.path.lexists(each))


def describe_file_for_folder(there: Path) -> str:
    """Say that something else is where a folder is needed."""
    return f"{there} is no folder, and one is needed: move it away, or name another place"


def describe_closed(there: Path) -> str:
    """Say that the permissions of a place keep this user out."""
    return (
        f"the permissions of {there} keep this user (uid {os.geteuid()}) out: run as its owner, change them "
        "(chown, chmod), or name another place"
    )
