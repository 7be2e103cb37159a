"""Where the passages of a corpus come from, and how it is named, of which nothing is read here."""

import os
import re
from pathlib import Path

from armwise.arms.base import RESERVED

BUILT_IN = {"stdlib": "the standard library", "language": "the language reference"}
"""Names of the sources that every interpreter has, and what each is."""


def locate_source(source: str | Path, folder: Path | None = None) -> str:
    """Return a source as an absolute path, or a built-in one by its name.

    Args:
        source: A built-in source, a file or a folder.
        folder: The folder that a relative path is relative to; None: the current folder.

    Raises:
        ValueError: It is blank, which would be the folder itself.

    >>> locate_source("language"), locate_source("/data/notes"), locate_source("notes.jsonl", Path("/srv"))
    ('language', '/data/notes', '/srv/notes.jsonl')
    """
    if not str(source).strip():
        raise ValueError(
            f"{source!r} names no source: expected a file, a folder, {' or '.join(map(repr, BUILT_IN))}"
        )
    return str(source) if source in BUILT_IN else str((folder or Path.cwd()) / os.path.expanduser(source))


def name_corpus(source: str) -> str:
    """Return the name of the corpus of a source for which none is given.

    >>> name_corpus("/data/our manuals.jsonl.gz"), name_corpus("/data/Auto")
    ('our-manuals', 'corpus')
    """
    stem = Path(source).expanduser().absolute().name.split(".jsonl")[0]
    slug = re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-_")[:100]
    return "corpus" if slug.lower() in ("", *RESERVED) else slug
