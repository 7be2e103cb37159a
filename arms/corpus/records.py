"""Records of a source, and the metadata of their passages."""

import contextlib
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import yaml

from armwise.arms.base import Passage
from armwise.arms.filters import GROUPS, Metadata

READER_VERSION = 7
"""Part of every fingerprint: raise it when the same source would read differently."""

MAX_NAMES, MAX_NAME, MAX_LISTED, MAX_TEXT = 64, 64, 256, 512
"""Names in the metadata of a passage, characters of a name, texts of a list, and characters of a text."""

FRONT_MATTER = re.compile(r"---[ \t]*\n(.*?\n)??---[ \t]*(?:\n|\Z)", re.DOTALL)

NAMES_GROUPS = re.compile(r"^[^\w\n]*allowed_groups\b", re.MULTILINE)


READ_AS_WINDOWS = "is not UTF-8, so the file is read as Windows-1252"
"""Problem of a line of a text that is read nevertheless."""


class CorpusError(ValueError):
    """A corpus cannot be read, built or opened."""


@dataclass(frozen=True, slots=True)
class CorpusRecord:
    """One line, file or name of a source.

    Attributes:
        where: Place for messages: `corpus.jsonl:17`, `notes/plan.md`, `heapq.merge`.
        done: Progress after it, in the unit of the source's `total`.
        passages: Passages; none when it is blank or bad.
        problem: Why it is bad, or what of it could not be read; empty otherwise.
        left_out: Whether the problem is listed even where others end the ingest: a file that is never read.
    """

    where: str
    done: int
    passages: tuple[Passage, ...] = ()
    problem: str = ""
    left_out: bool = False


def front_matter(name: str, text: str) -> tuple[Metadata, str]:
    r"""Return the metadata between two lines `---` at the beginning of a Markdown text, and the rest.

    What no metadata can be is left out, but groups that cannot be read are an error: the text of such a file
    is for somebody alone.

    >>> front_matter("plan.md", "---\nyear: 2024\nallowed_groups: [staff]\nlinks: {a: 1}\n---\nThe plan.")
    ({'allowed_groups': ['staff'], 'year': 2024}, 'The plan.')
    >>> front_matter("plan.md", "---\nA rule above.\n---\n")
    ({}, '---\nA rule above.\n---\n')

    Raises:
        CorpusError: It names groups, and is not a map of YAML, or they are not a list of texts.
    """
    block = FRONT_MATTER.match(text)
    values_read: object = None
    if block is not None:
        with contextlib.suppress(yaml.YAMLError, ValueError, RecursionError):  # such as a date out of range
            values_read = yaml.safe_load(block[1] or "")
    if block is None or not isinstance(values_read, dict):
        if text.lstrip().startswith("---") and NAMES_GROUPS.search(text):
            raise CorpusError(f"{name} names {GROUPS}, but does not begin with a YAML map between --- lines")
        return {}, text
    values = {
        str(key): value.isoformat() if isinstance(value, date) else value
        for key, value in values_read.items()
    }
    kept = [(key, value) for key, value in values.items() if key == GROUPS or not find_problem(key, value)]
    kept.sort(key=lambda item: item[0] != GROUPS)
    return check_metadata(name, dict(kept[:MAX_NAMES])), text[block.end() :]


def check_metadata(passage: str, metadata: object) -> Metadata:
    """Return the metadata of a passage, without what is null. Raises CorpusError.

    >>> check_metadata("1", {"year": 2024, "source": None, "allowed_groups": ["staff"]})
    {'year': 2024, 'allowed_groups': ['staff']}
    """
    if metadata is None:
        return {}
    if not isinstance(metadata, dict):
        raise CorpusError(f"the metadata of passage {passage!r} is not an object: {short(metadata)}")
    if len(metadata) > MAX_NAMES:
        raise CorpusError(
            f"passage {passage!r} has {len(metadata)} metadata names; at most {MAX_NAMES} are allowed"
        )
    for name, value in metadata.items():
        problem = find_problem(name, value)
        if problem:
            raise CorpusError(f"metadata {short(name)} of passage {passage!r} {problem}, got {short(value)}")
    return {name: value for name, value in metadata.items() if value is not None}


def find_problem(name: str, value: object) -> str:
    """Return why a name or its value is bad; empty where both are good."""
    if not 1 <= len(name) <= MAX_NAME:
        return f"has a name of {len(name)} characters: 1 to {MAX_NAME} were expected"
    if isinstance(value, list):
        if len(value) > MAX_LISTED:
            return f"has {len(value)} texts: at most {MAX_LISTED} fit"
        if not all(isinstance(text, str) and text for text in value):
            return "is a list of other than texts"
    elif name == GROUPS:
        return "must be a list of texts, empty for nobody"  # null would be for everybody
    elif not isinstance(value, str | int | float | bool | None):
        return "must be a text, a number, true, false or a list of texts"
    texts = value if isinstance(value, list) else [value]
    if any(isinstance(text, str) and len(text) > MAX_TEXT for text in texts):
        return f"has a text of more than {MAX_TEXT} characters"
    return ""


def short(value: object) -> str:
    """Return a value as a message shows it."""
    return repr(value) if len(repr(value)) <= 80 else f"{repr(value)[:77]}..."


def hash_files(place: str, files: Iterable[Path]) -> str:
    """Return a hash of a place, and of the path, size and time of change of its files."""
    facts = [f"{READER_VERSION} {place}"]
    for path in files:
        status = path.stat()
        facts.append(f"{path} {status.st_size} {status.st_mtime_ns}")
    return hashlib.blake2b("\n".join(facts).encode(), digest_size=16).hexdigest()
