"""Where the passages of a corpus come from, and how it is named, of which nothing is read here."""

import re
from pathlib import Path

from armwise.arms.base import RESERVED

BUILT_IN = {"stdlib": "the standard library", "language": "the language reference"}
"""Names of the sources that every interpreter has, and what each is."""


def located(source: str | Path) -> str:
    """Return a source as an absolute path, or a built-in one by its name.

    >>> located("language"), located("/data/notes")
    ('language', '/data/notes')
    """
    return str(source) if source in BUILT_IN else str(Path(source).expanduser().absolute())


def name_corpus(source: str) -> str:
    """Return the name of the corpus of a source for which none is given.

    >>> name_corpus("/data/our manuals.jsonl.gz"), name_corpus("/data/Auto")
    ('our-manuals', 'corpus')
    """
    stem = Path(source).expanduser().absolute().name.split(".jsonl")[0]
    slug = re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-_")[:100]
    return "corpus" if slug.lower() in ("", *RESERVED) else slug
