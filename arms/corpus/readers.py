"""Sources of passages: JSON lines, BEIR folders, Markdown and text, the standard library.

A source yields records, lazily and always in the same order: a line, a file or a
documented name. A record holds passages, or a problem. Reading resumes after `n` records
with `records(n)`.
"""

import codecs
import contextlib
import gzip
import hashlib
import io
import itertools
import os
import re
import subprocess
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import BinaryIO, Protocol

import orjson
import yaml

from arms.base import Passage
from arms.corpus import stdlib
from arms.corpus.chunking import chunks
from arms.filters import GROUPS, Metadata

STDLIB = "stdlib"
"""Name of the source that is the documentation of the running interpreter."""

JSONL_SUFFIXES = (".jsonl", ".jsonl.gz")

TEXT_SUFFIXES = (".md", ".markdown", ".txt")

READER_VERSION = 2
"""Part of every fingerprint: raise it when the same source would read differently."""

MAX_NAMES, MAX_NAME, MAX_LISTED, MAX_TEXT = 64, 64, 256, 512
"""Names in the metadata of a passage, characters of a name, texts of a list, and characters of a text."""

FENCED = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)

FRONT_MATTER = re.compile(r"---[ \t]*\n(.*?\n)??---[ \t]*(?:\n|\Z)", re.DOTALL)

NAMES_GROUPS = re.compile(r"^[^\w\n]*allowed_groups\b", re.MULTILINE)

HEADING = re.compile(r"^#{1,6}[ \t]+(\S.*)$", re.MULTILINE)


class CorpusError(ValueError):
    """A corpus cannot be read, built or opened."""


@dataclass(frozen=True, slots=True)
class Record:
    """One line, file or name of a source.

    Attributes:
        where: Its place, for messages: `corpus.jsonl:17`, `notes/plan.md`, `heapq.merge`.
        done: Progress after it, in the unit of the source's `total`.
        passages: Its passages; none when it is blank or bad.
        problem: Why it is bad; empty otherwise.
    """

    where: str
    done: int
    passages: tuple[Passage, ...] = ()
    problem: str = ""


class Source(Protocol):
    """A source of passages.

    Attributes:
        name: Display name of the corpus.
        place: An absolute path, or `stdlib`.
    """

    name: str
    place: str

    def fingerprint(self) -> str:
        """Return a text that changes when the source does, without reading it."""
        ...

    def total(self) -> int | None:
        """Return the value of `Record.done` at the end; None if unknown."""
        ...

    def records(self, start: int = 0) -> Iterator[Record]:
        """Yield the records after the first `start`. Raises CorpusError when the source is unreadable."""
        ...


def open_source(source: str | Path) -> Source:
    """Return the source at a path, or the standard library for `stdlib`.

    Write `./stdlib` for a folder of that name.

    Raises:
        CorpusError: The path does not exist, or has an unknown format.
    """
    if source == STDLIB:
        return StandardLibrary()
    path = Path(source).resolve()
    if path.is_dir():
        beir = [path / f"corpus{suffix}" for suffix in JSONL_SUFFIXES if (path / f"corpus{suffix}").is_file()]
        return JsonLines(beir[0], name=path.name) if beir else TextFolder(path)
    if not path.is_file():
        raise CorpusError(f"no corpus at {path}: expected a file, a folder or {STDLIB!r}")
    if not path.name.endswith(JSONL_SUFFIXES):
        raise CorpusError(f"cannot read {path}: a file must end with {' or '.join(JSONL_SUFFIXES)}")
    return JsonLines(path, name=path.name.partition(".")[0])


class JsonLines:
    """One JSON object a line, `{"id" or "_id", "title"?, "text", "metadata"?}`; may be gzipped."""

    def __init__(self, path: Path, name: str) -> None:
        self.name = name
        self.place = str(path)
        self._path = path

    def fingerprint(self) -> str:
        """Hash path, size and time of change."""
        return _fingerprint(self.place, [self._path])

    def total(self) -> int | None:
        """Return the size of the file in bytes, as stored."""
        return self._path.stat().st_size

    def records(self, start: int = 0) -> Iterator[Record]:
        """Yield one record per line; a blank line has no passages and no problem."""
        with self._path.open("rb") as stored:
            packed = self._path.suffix == ".gz"
            lines = io.BufferedReader(gzip.GzipFile(fileobj=stored)) if packed else stored
            numbered = enumerate(_until_broken(lines, self._path), start=1)
            for number, line in itertools.islice(numbered, start, None):
                where = f"{self._path.name}:{number}"
                try:
                    yield Record(where, stored.tell(), _parse(line if number > 1 else _without_bom(line)))
                except CorpusError as error:
                    yield Record(where, stored.tell(), problem=str(error))


class TextFolder:
    """Markdown and text files below a folder, in chunks; hidden files are ignored."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self.place = str(path)
        self._path = path

    def fingerprint(self) -> str:
        """Hash path, size and time of change of every file."""
        return _fingerprint(self.place, self._files())

    def total(self) -> int | None:
        """Return the number of files."""
        return len(self._files())

    def records(self, start: int = 0) -> Iterator[Record]:
        """Yield one record per file; an empty file has no passages and no problem."""
        for done, path in itertools.islice(enumerate(self._files(), start=1), start, None):
            where = os.fsencode(path.relative_to(self._path)).decode(errors="replace")
            try:
                text = path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
            except UnicodeDecodeError as error:
                line = bytes(error.object[: error.start]).count(b"\n") + 1
                yield Record(f"{where}:{line}", done, problem=f"not UTF-8: {error.reason}")
                continue
            about: Metadata = {"path": where} if len(where) <= MAX_TEXT else {}
            if path.suffix != ".txt":
                try:
                    found, text = front_matter(where, text)
                except CorpusError as error:
                    yield Record(where, done, problem=str(error))
                    continue
                about = {**found, **about}
            title = path.stem if path.suffix == ".txt" else markdown_title(text) or path.stem
            pieces = enumerate(chunks(text))
            passages = (Passage(f"{where}#{n}", title, piece, metadata=about) for n, piece in pieces)
            yield Record(where, done, tuple(passages))

    def _files(self) -> list[Path]:
        return [
            path
            for path in sorted(self._path.rglob("*"))
            if path.suffix in TEXT_SUFFIXES and path.is_file()
            if not any(part.startswith(".") for part in path.relative_to(self._path).parts)
        ]


class StandardLibrary:
    """The docstrings of the interpreter's standard library, read by a process of `arms.corpus.stdlib`.

    The passages about `heapq` have the ids `heapq`, `heapq#1`, `heapq#2`.
    """

    name = STDLIB
    place = STDLIB

    def fingerprint(self) -> str:
        """Hash the version and the build of the interpreter."""
        return _fingerprint(f"{STDLIB} {sys.version} {sys.platform}", [])

    def total(self) -> int | None:
        """Return None: unknown before the modules are imported."""
        return None

    def records(self, start: int = 0) -> Iterator[Record]:
        """Yield one record per documented name."""
        isolated = ["-I", "-S"]  # neither the environment, nor the working folder, nor site-packages
        reading = subprocess.run(
            [sys.executable, *isolated, stdlib.__file__],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        if reading.returncode != 0:
            last = reading.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            raise CorpusError(f"the standard library could not be read: {last or reading.returncode}")
        lines = enumerate(reading.stdout.splitlines(), start=1)
        for done, line in itertools.islice(lines, start, None):
            (whole,) = _parse(line)
            pieces = enumerate(chunks(whole.text))
            named = ((f"{whole.id}#{n}" if n else whole.id, piece) for n, piece in pieces)
            yield Record(whole.id, done, tuple(Passage(name, whole.title, piece) for name, piece in named))


def markdown_title(text: str) -> str:
    r"""Return the first heading outside fenced code, or an empty text.

    >>> markdown_title("intro\n## The plan ##\n# Later")
    'The plan'
    """
    heading = HEADING.search(FENCED.sub("", text))
    return heading[1].rstrip(" \t#") if heading else ""


def front_matter(name: str, text: str) -> tuple[Metadata, str]:
    r"""Return the metadata between two lines `---` at the beginning of a Markdown text, and the rest.

    What no metadata can be is left out, but groups that cannot be read are an error: the text of such a file
    is for somebody alone.

    >>> front_matter("plan.md", "---\nyear: 2024\nallowed_groups: [staff]\nlinks: {a: 1}\n---\nThe plan.")
    ({'allowed_groups': ['staff'], 'year': 2024}, 'The plan.')
    >>> front_matter("plan.md", "---\nA rule above.\n---\n")
    ({}, '---\nA rule above.\n---\n')

    Raises:
        CorpusError: It names groups, and is no map of YAML, or they are no list of texts.
    """
    block = FRONT_MATTER.match(text)
    found: object = None
    if block is not None:
        with contextlib.suppress(yaml.YAMLError, ValueError, RecursionError):  # such as a date out of range
            found = yaml.safe_load(block[1] or "")
    if block is None or not isinstance(found, dict):
        if text.lstrip().startswith("---") and NAMES_GROUPS.search(text):
            raise CorpusError(
                f"{name} names {GROUPS}, but does not begin with a map of YAML between lines ---"
            )
        return {}, text
    values = {str(key): one.isoformat() if isinstance(one, date) else one for key, one in found.items()}
    kept = [(key, one) for key, one in values.items() if key == GROUPS or not _problem(key, one)]
    kept.sort(key=lambda item: item[0] != GROUPS)
    return checked(name, dict(kept[:MAX_NAMES])), text[block.end() :]


def _parse(line: bytes) -> tuple[Passage, ...]:
    """Return the passage of a line, or none for a blank line. Raises CorpusError."""
    if not line.strip():
        return ()
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise CorpusError(f"not {'JSON' if _is_utf8(line) else 'UTF-8'}: {error}") from None
    if not isinstance(found, dict):
        raise CorpusError(f"not a JSON object but {type(found).__name__}")
    name, title, text = found.get("id", found.get("_id")), found.get("title"), found.get("text")
    if type(name) is int:
        name = str(name)
    if not isinstance(name, str) or not name:
        raise CorpusError(f"needs a non-empty 'id' or '_id', got {name!r}")
    if not isinstance(text, str) or not text.strip():
        raise CorpusError(f"passage {name!r} needs a non-empty 'text', got {text!r}")
    if not isinstance(title, str | None):
        raise CorpusError(f"the title of passage {name!r} is not text: {title!r}")
    return (Passage(name, title or "", text, metadata=checked(name, found.get("metadata"))),)


def checked(passage: str, found: object) -> Metadata:
    """Return the metadata of a passage, without what is null. Raises CorpusError.

    >>> checked("1", {"year": 2024, "source": None, "allowed_groups": ["staff"]})
    {'year': 2024, 'allowed_groups': ['staff']}
    """
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise CorpusError(f"the metadata of passage {passage!r} is not an object: {_short(found)}")
    if len(found) > MAX_NAMES:
        raise CorpusError(f"passage {passage!r} has {len(found)} names of metadata: at most {MAX_NAMES} fit")
    for name, value in found.items():
        problem = _problem(name, value)
        if problem:
            raise CorpusError(
                f"metadata {_short(name)} of passage {passage!r} {problem}, got {_short(value)}"
            )
    return {name: value for name, value in found.items() if value is not None}


def _problem(name: str, value: object) -> str:
    """Return why a name or its value is bad; empty where both are good."""
    if not 1 <= len(name) <= MAX_NAME:
        return f"has a name of {len(name)} characters: 1 to {MAX_NAME} were expected"
    if isinstance(value, list):
        if len(value) > MAX_LISTED:
            return f"has {len(value)} texts: at most {MAX_LISTED} fit"
        if not all(isinstance(one, str) and one for one in value):
            return "is a list of other than texts"
    elif name == GROUPS:
        return "must be a list of texts, empty for nobody"  # null would be for everybody
    elif not isinstance(value, str | int | float | bool | None):
        return "must be a text, a number, true, false or a list of texts"
    texts = value if isinstance(value, list) else [value]
    if any(isinstance(one, str) and len(one) > MAX_TEXT for one in texts):
        return f"has a text of more than {MAX_TEXT} characters"
    return ""


def _short(value: object) -> str:
    return repr(value) if len(repr(value)) <= 80 else f"{repr(value)[:77]}..."


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _without_bom(line: bytes) -> bytes:
    return line.removeprefix(codecs.BOM_UTF8)


def _until_broken(lines: BinaryIO, path: Path) -> Iterator[bytes]:
    """Yield lines. Raises CorpusError where a compressed file is damaged or truncated."""
    number = 0
    try:
        for number, line in enumerate(lines, start=1):  # noqa: B007 (read below)
            yield line
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise CorpusError(f"{path.name}:{number + 1}: damaged gzip: {error}") from error


def _fingerprint(place: str, files: list[Path]) -> str:
    facts = [f"{READER_VERSION} {place}"]
    for path in files:
        status = path.stat()
        facts.append(f"{path} {status.st_size} {status.st_mtime_ns}")
    return hashlib.blake2b("\n".join(facts).encode(), digest_size=16).hexdigest()
