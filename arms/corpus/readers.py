"""Sources of passages: JSON lines, BEIR folders, folders of documents, what the interpreter has of its own.

A source yields records, lazily and always in the same order: a line, a file, a row, a
documented name or a topic. A record holds passages, or a problem. Reading resumes after `n` records
with `records(n)`.

PDF, HTML and DOCX files are parsed by another process, `armwise.arms.corpus.documents`, and CSV files by
`armwise.arms.corpus.tables`.
"""

import codecs
import contextlib
import gzip
import importlib.util
import io
import itertools
import json
import os
import re
import select
import subprocess
import sys
import time
import zlib
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import orjson

from armwise.arms.base import Passage
from armwise.arms.corpus import documents, language, stdlib, tables
from armwise.arms.corpus.chunking import WORD, chunks, spans_of
from armwise.arms.corpus.records import MAX_TEXT, CorpusError, Record, checked, fingerprint_of, front_matter
from armwise.arms.filters import Metadata
from armwise.arms.own_processes import python

DOCUMENT_SUFFIXES = tuple(documents.READERS)

LIBRARIES = ("docx", "lxml", "pypdfium2")

GIVEN = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH")
"""Variables of the environment that a parser gets: none with a key."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one document may be and take.

    Attributes:
        file_bytes: Size of the file.
        html_bytes: Size of one of HTML, whose tree takes about ten times as much.
        unpacked_bytes: Size of all that a DOCX file holds.
        pages: Number of pages of a PDF.
        chars: Number of characters of the text.
        memory_bytes: Address space of the process.
        seconds: Time for the largest file, after which the process is killed.
        base_seconds: Time for the smallest.
        seconds_per_mib: Time that a MiB of PDF or DOCX adds, which are compressed.
        html_seconds_per_mib: Time that a MiB of HTML adds.
    """

    file_bytes: int = 512 << 20
    html_bytes: int = 32 << 20
    unpacked_bytes: int = 256 << 20
    pages: int = 10_000
    chars: int = 20_000_000
    memory_bytes: int = 2 << 30
    seconds: float = 120.0
    base_seconds: float = 10.0
    seconds_per_mib: float = 30.0
    html_seconds_per_mib: float = 4.0

    def seconds_of(self, path: Path) -> float:
        """Return the time that a file may take: a small one cannot hold up an ingest as long as a large one.

        Ordinary HTML takes at most about a second per MiB of one slow core.
        """
        packed = path.suffix.lower() in (".pdf", ".docx")
        rate = self.seconds_per_mib if packed else self.html_seconds_per_mib
        return min(self.seconds, self.base_seconds + rate * path.stat().st_size / (1 << 20))


LIMITS = Limits()


def missing() -> list[str]:
    """Return the libraries that are not installed: with them, a folder would read differently."""
    return [name for name in LIBRARIES if importlib.util.find_spec(name) is None]


class Parser:
    """Parses documents one after another, in a process that is started for the first one. Close it."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self._limits = limits
        self._process: subprocess.Popen[bytes] | None = None

    def passages(self, path: Path, where: str, about: Metadata) -> Iterator[Passage]:
        """Yield the passages of a file.

        Args:
            path: The file.
            where: Name from which ids are made: `report.pdf#p3-1` is the first passage of page 3, and
                `notes.html#0` that of a document without pages.
            about: Metadata of all passages; those of page and heading are added.

        Raises:
            CorpusError: It cannot be parsed within the limits.
        """
        if path.stat().st_size > self._limits.file_bytes:
            raise CorpusError(f"has more than {self._limits.file_bytes:,} bytes")
        document = self._reply(path)
        title = document["title"] or path.stem
        for part in document["parts"]:
            page, text, end = part["page"], part["text"], 0
            places = [place for place, _ in part["headings"]]
            for n, (begin, till) in enumerate(spans_of(text)):
                name = f"{where}#{n}" if page is None else f"{where}#p{page}-{n + 1}"
                # what the passage repeats of the one before may be of an earlier section
                new = WORD.search(text, max(begin, end))
                above = bisect_right(places, end if new is None else new.start())
                location = {} if page is None else {"page": page}
                location |= {"heading": part["headings"][above - 1][1]} if above else {}
                yield Passage(name, title, text[begin:till], metadata={**about, **location})
                end = till

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _reply(self, path: Path) -> dict[str, Any]:
        """Return what the process makes of a file. Raises CorpusError."""
        request = json.dumps({"path": os.fspath(path), **asdict(self._limits)})
        process = self._running()
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has died, as reading its reply shows
            process.stdin.write(request.encode() + b"\n")
            process.stdin.flush()
        line = self._line(process, self._limits.seconds_of(path))
        if not line:
            process.wait()
            self.close()
            raise CorpusError(
                f"its parser crashed (exit code {process.returncode}), "
                f"or needed more than {self._limits.memory_bytes >> 20:,} MiB of memory"
            )
        reply: dict[str, Any] = json.loads(line)
        if "problem" in reply:
            self.close()  # what has failed half way may still hold memory
            raise CorpusError(reply["problem"])
        return reply

    def _line(self, process: subprocess.Popen[bytes], seconds: float) -> bytes:
        """Return the next reply; empty where the process has ended. Raises CorpusError after a time."""
        assert process.stdout is not None
        pipe, deadline, read = process.stdout.fileno(), time.monotonic() + seconds, bytearray()
        while not read.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([pipe], [], [], left)[0]:
                self.close()
                raise CorpusError(f"was not parsed within {seconds:.3g} s")
            part = os.read(pipe, 1 << 20)
            if not part:
                return b""
            read += part
        return bytes(read)

    def _running(self) -> subprocess.Popen[bytes]:
        """Return the process, started anew where none runs."""
        if self._process is None:
            # nor the folder of this file, whose modules are not to be found by their bare names
            self._process = subprocess.Popen(
                python(str(documents.__file__)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={name: os.environ[name] for name in GIVEN if name in os.environ},
            )
        return self._process


TEXT_SUFFIXES = (".md", ".markdown", ".txt")

SUFFIXES = (*TEXT_SUFFIXES, *tables.SUFFIXES, *DOCUMENT_SUFFIXES)

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
        lacks = missing() if any(path.suffix.lower() in DOCUMENT_SUFFIXES for path in files) else []
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
        with contextlib.closing(Parser()) as parser:
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

    def _record(self, path: Path, done: int, parser: Parser) -> Record:
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
            readable = path.suffix.lower() in SUFFIXES
            if path.is_symlink() and (readable or path.is_dir()) and (reason := self._leaves(path)):
                left_out.append((path, reason))
            elif readable and path.is_file():
                files.append(path)
            elif readable and not path.is_dir():
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
            metadata, text = front_matter(where, text)
        except CorpusError as error:
            return Record(where, done, problem=str(error))
        about = {**metadata, **about}
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


BUILT_IN = {
    "stdlib": (stdlib, "the standard library"),
    "language": (language, "the language reference"),
}
"""Names of the sources that every interpreter has, each with the module that writes it and what it is."""

JSONL_SUFFIXES = (".jsonl", ".jsonl.gz")


class Source(Protocol):
    """A source of passages.

    Attributes:
        name: Display name of the corpus.
        place: An absolute path, or the name of a built-in source.
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


def located(source: str | Path) -> str:
    """Return a source as an absolute path, or a built-in one by its name.

    >>> located("language"), located("/data/notes")
    ('language', '/data/notes')
    """
    return str(source) if source in BUILT_IN else str(Path(source).expanduser().absolute())


def open_source(source: str | Path) -> Source:
    """Return the source at a path, or a built-in one: `stdlib` or `language`.

    Write `./stdlib` for a folder of that name.

    Raises:
        CorpusError: The path does not exist, or has an unknown format.
    """
    if source in BUILT_IN:
        return BuiltIn(str(source))
    path = Path(source).resolve()
    if path.is_dir():
        beir = [path / f"corpus{suffix}" for suffix in JSONL_SUFFIXES if (path / f"corpus{suffix}").is_file()]
        if beir and not beir[0].resolve().is_relative_to(path):
            raise CorpusError(f"{beir[0]} is a link that leaves the folder: name the file itself to read it")
        return JsonLines(beir[0], name=path.name) if beir else Folder(path)
    path = Path(os.path.abspath(source))  # its own name: that of a link, whose target may have another ending
    if not path.is_file():
        names = " or ".join(map(repr, BUILT_IN))
        raise CorpusError(f"no corpus at {path}: expected a file, a folder, {names}")
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


class BuiltIn:
    """What the interpreter has of its own, read by a process of the module that writes it.

    The passages about `heapq` in `stdlib` have the ids `heapq`, `heapq#1`, `heapq#2`, and so have those of a
    topic in `language`.

    Args:
        name: One of `BUILT_IN`.
    """

    def __init__(self, name: str) -> None:
        self.name = self.place = name
        self._module, self._what = BUILT_IN[name]

    def fingerprint(self) -> str:
        """Hash the version and the build of the interpreter."""
        return fingerprint_of(f"{self.name} {sys.version} {sys.platform}", [])

    def total(self) -> int | None:
        """Return None: unknown before it is read."""
        return None

    def records(self, start: int = 0) -> Iterator[Record]:
        """Yield one record per documented name, or per topic."""
        isolated = ["-I", "-S"]  # neither the environment, nor the working folder, nor site-packages
        reading = subprocess.run(
            [sys.executable, *isolated, str(self._module.__file__)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        if reading.returncode != 0:
            last = reading.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            raise CorpusError(f"{self._what} could not be read: {last or reading.returncode}")
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
        row = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise CorpusError(f"not {'JSON' if _is_utf8(line) else 'UTF-8'}: {error}") from None
    if not isinstance(row, dict):
        raise CorpusError(f"not a JSON object but {type(row).__name__}")
    name, title, text = row.get("id", row.get("_id")), row.get("title"), row.get("text")
    if type(name) is int:
        name = str(name)
    if not isinstance(name, str) or not name:
        raise CorpusError(f"needs a non-empty 'id' or '_id', got {name!r}")
    if not isinstance(text, str) or not text.strip():
        raise CorpusError(f"passage {name!r} needs a non-empty 'text', got {text!r}")
    if not isinstance(title, str | None):
        raise CorpusError(f"the title of passage {name!r} is not text: {title!r}")
    return (Passage(name, title or "", text, metadata=checked(name, row.get("metadata"))),)


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
