"""A folder of files, or one file: Markdown, text, CSV, PDF, HTML and DOCX, in order of their paths."""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from arms.base import Passage
from arms.corpus import parsing, tables
from arms.corpus.chunking import chunks
from arms.corpus.records import MAX_TEXT, CorpusError, Record, fingerprint_of, front_matter
from arms.filters import Metadata

TEXT_SUFFIXES = (".md", ".markdown", ".txt")

SUFFIXES = (*TEXT_SUFFIXES, *tables.SUFFIXES, *parsing.SUFFIXES)

IGNORED = (".", "~$")
"""How names of hidden files begin, and of those with which Word marks a document that is open."""

FENCED = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)

HEADING = re.compile(r"^#{1,6}[ \t]+(\S.*)$", re.MULTILINE)


class Folder:
    """The files of known formats below a folder, or one of them; hidden files are ignored.

    Args:
        path: The folder, or the file.
    """

    def __init__(self, path: Path) -> None:
        self.name = path.name if path.is_dir() else path.stem
        self.place = str(path)
        self._path = path
        self._root = path if path.is_dir() else path.parent

    def fingerprint(self) -> str:
        """Hash path, size and time of change of every file, and what is missing to read them."""
        files = self._files()
        lacks = parsing.missing() if any(one.suffix.lower() in parsing.SUFFIXES for one in files) else []
        return fingerprint_of(" ".join([self.place, *lacks]), files)

    def total(self) -> int | None:
        """Return the bytes of all files."""
        return sum(path.stat().st_size for path in self._files())

    def records(self, start: int = 0) -> Iterator[Record]:
        """Yield one record per file, and per row of a table; an empty file has no passages and no problem."""
        done = 0
        with contextlib.closing(parsing.Parser()) as parser:
            for path in self._files():
                before, done = done, done + path.stat().st_size
                if path.suffix.lower() in tables.SUFFIXES:
                    for record in tables.read_table(path, *self._about(path), before):
                        if start == 0:
                            yield record
                        start = max(0, start - 1)
                elif start:
                    start -= 1
                else:
                    yield self._record(path, done, parser)

    def _record(self, path: Path, done: int, parser: parsing.Parser) -> Record:
        where, about = self._about(path)
        if path.suffix.lower() in TEXT_SUFFIXES:
            return read_text(path, where, about, done)
        try:
            return Record(where, done, tuple(parser.passages(path, where, about)))
        except CorpusError as error:
            return Record(where, done, problem=str(error))

    def _about(self, path: Path) -> tuple[str, Metadata]:
        """Return the name of a file and the metadata of its passages."""
        where = printable(path.relative_to(self._root))
        return where, {"path": where} if len(where) <= MAX_TEXT else {}

    def _files(self) -> list[Path]:
        if self._root != self._path:
            return [self._path]
        return [
            path
            for path in sorted(self._path.rglob("*"))
            if path.suffix.lower() in SUFFIXES and path.is_file()
            if not any(part.startswith(IGNORED) for part in path.relative_to(self._path).parts)
        ]


def read_text(path: Path, where: str, about: Metadata, done: int) -> Record:
    """Return the passages of a Markdown or text file."""
    try:
        text = path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = bytes(error.object[: error.start]).count(b"\n") + 1
        return Record(f"{where}:{line}", done, problem=f"not UTF-8: {error.reason}")
    plain = path.suffix.lower() == ".txt"
    if not plain:
        try:
            found, text = front_matter(where, text)
        except CorpusError as error:
            return Record(where, done, problem=str(error))
        about = {**found, **about}
    title = path.stem if plain else markdown_title(text) or path.stem
    pieces = enumerate(chunks(text))
    return Record(
        where, done, tuple(Passage(f"{where}#{n}", title, piece, metadata=about) for n, piece in pieces)
    )


def printable(path: Path) -> str:
    r"""Return a path as one line of text: what cannot be printed is escaped.

    >>> printable(Path("notes/a\nb.md"))
    'notes/a\\nb.md'
    """
    text = os.fsencode(path).decode(errors="replace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def markdown_title(text: str) -> str:
    r"""Return the first heading outside fenced code, or an empty text.

    >>> markdown_title("intro\n## The plan ##\n# Later")
    'The plan'
    """
    heading = HEADING.search(FENCED.sub("", text))
    return heading[1].rstrip(" \t#") if heading else ""
