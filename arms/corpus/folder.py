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

    A link is read if it leads to a file of the folder that is not hidden. Other links, pipes and devices are
    left out, and listed. What a hard link shares with a file elsewhere cannot be known.

    Args:
        path: The folder, or the file.
    """

    def __init__(self, path: Path) -> None:
        self.name = path.name if path.is_dir() else path.stem
        self.place = str(path)
        self._path = path
        self._root = path if path.is_dir() else path.parent

    def fingerprint(self) -> str:
        """Hash path, size and time of change of every file, what is left out, and what is missing to read."""
        files, left_out = self._files()
        lacks = parsing.missing() if any(one.suffix.lower() in parsing.SUFFIXES for one in files) else []
        links = [f"{printable(path)} {reason}" for path, reason in left_out]
        return fingerprint_of(" ".join([self.place, *lacks, *links]), files)

    def total(self) -> int | None:
        """Return the bytes of all files."""
        return sum(path.stat().st_size for path in self._files()[0])

    def records(self, start: int = 0) -> Iterator[Record]:
        """Yield one record per file, and per row of a table, then one per file that is left out.

        An empty file has no passages and no problem.
        """
        done = 0
        files, left_out = self._files()
        with contextlib.closing(parsing.Parser()) as parser:
            for path in files:
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
        for path, reason in left_out[start:]:
            yield Record(self._about(path)[0], done, problem=reason, left_out=True)

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

    def _files(self) -> tuple[list[Path], list[tuple[Path, str]]]:
        """Return the files to read, and those that are left out with the reason, in order of their paths."""
        if self._root != self._path:
            return [self._path], []
        files: list[Path] = []
        left_out: list[tuple[Path, str]] = []
        for path in sorted(self._path.rglob("*")):
            if _is_hidden(path.relative_to(self._path)):
                continue
            known = path.suffix.lower() in SUFFIXES
            if path.is_symlink() and (known or path.is_dir()) and (reason := self._leaves(path)):
                left_out.append((path, reason))
            elif known and path.is_file():
                files.append(path)
            elif known and not path.is_dir():
                left_out.append((path, "is not a regular file, and is not read"))
        return files, left_out

    def _leaves(self, link: Path) -> str:
        """Return why a link is left out; empty for one to what the folder has anyway."""
        try:
            target = link.resolve(strict=True)
        except (OSError, RuntimeError):  # RuntimeError: a loop, before Python 3.13
            return "is a link to nothing"
        root = self._path.resolve()
        if not target.is_relative_to(root):
            return "is a link that leaves the folder, and is not read"
        return "is a link to a hidden file, and is not read" if _is_hidden(target.relative_to(root)) else ""


def _is_hidden(path: Path) -> bool:
    """Return whether a path below a folder is that of a hidden file, or within a hidden folder."""
    return any(part.startswith(IGNORED) for part in path.parts)


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
