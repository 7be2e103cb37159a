"""Sources of passages: JSON lines, BEIR folders, folders of documents, the standard library.

A source yields records, lazily and always in the same order: a line, a file, a row or a
documented name. A record holds passages, or a problem. Reading resumes after `n` records
with `records(n)`.
"""

import codecs
import gzip
import io
import itertools
import os
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Protocol

import orjson

from arms.base import Passage
from arms.corpus import stdlib
from arms.corpus.chunking import chunks
from arms.corpus.folder import SUFFIXES, Folder
from arms.corpus.records import CorpusError, Record, checked, fingerprint_of

STDLIB = "stdlib"
"""Name of the source that is the documentation of the running interpreter."""

JSONL_SUFFIXES = (".jsonl", ".jsonl.gz")


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
        if beir and not beir[0].resolve().is_relative_to(path):
            raise CorpusError(f"{beir[0]} is a link that leaves the folder: name the file itself to read it")
        return JsonLines(beir[0], name=path.name) if beir else Folder(path)
    path = Path(os.path.abspath(source))  # its own name: that of a link, whose target may have another ending
    if not path.is_file():
        raise CorpusError(f"no corpus at {path}: expected a file, a folder or {STDLIB!r}")
    if path.name.endswith(JSONL_SUFFIXES):
        return JsonLines(path, name=path.name.partition(".")[0])
    if path.suffix.lower() not in SUFFIXES:
        endings = ", ".join((*JSONL_SUFFIXES, *SUFFIXES))
        raise CorpusError(f"cannot read {path}: a file must end with one of {endings}")
    return Folder(path)


class JsonLines:
    """One JSON object a line, `{"id" or "_id", "title"?, "text", "metadata"?}`; may be gzipped."""

    def __init__(self, path: Path, name: str) -> None:
        self.name = name
        self.place = str(path)
        self._path = path

    def fingerprint(self) -> str:
        """Hash path, size and time of change."""
        return fingerprint_of(self.place, [self._path])

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


class StandardLibrary:
    """The docstrings of the interpreter's standard library, read by a process of `arms.corpus.stdlib`.

    The passages about `heapq` have the ids `heapq`, `heapq#1`, `heapq#2`.
    """

    name = STDLIB
    place = STDLIB

    def fingerprint(self) -> str:
        """Hash the version and the build of the interpreter."""
        return fingerprint_of(f"{STDLIB} {sys.version} {sys.platform}", [])

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
