"""Sources of passages: JSON lines, BEIR folders, folders of documents, what the interpreter has of its own.

A source yields records, lazily and always in the same order: a line, a file, a row, a
documented name or a topic. A record holds passages, or a problem, or both where a part of a file cannot be
read. Reading resumes after `n` records with `records(n)`.

PDF, HTML and DOCX files are parsed by another process, `armwise.arms.corpus.documents`, and CSV files by
`armwise.arms.corpus.tables`. Source code and data are text: what Pygments has a lexer for.
"""

import codecs
import contextlib
import functools
import gzip
import io
import itertools
import json
import mimetypes
import os
import re
import subprocess
import sys
import threading
import time
import zlib
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import orjson
from pygments.lexers import get_all_lexers

from armwise.arms.base import Passage
from armwise.arms.corpus import documents, language, stdlib, tables
from armwise.arms.corpus.chunking import CHUNKING, WORD, Chunking, chunks, cut_spans
from armwise.arms.corpus.records import (
    MAX_TEXT,
    READ_AS_WINDOWS,
    CorpusError,
    CorpusRecord,
    check_metadata,
    front_matter,
    hash_files,
    short,
)
from armwise.arms.extras import find_missing, install_command
from armwise.arms.filters import Metadata
from armwise.arms.own_processes import python
from armwise.arms.places import BUILT_IN

DOCUMENT_SUFFIXES = tuple(documents.READERS)

LIBRARIES = ("lxml", "pypdfium2", "webencodings")

GIVEN = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH")
"""Variables of the environment that a parser gets: none with a key."""


@dataclass(frozen=True, slots=True)
class DocumentLimits:
    """What one document may be and take.

    Attributes:
        file_bytes: Size of the file.
        html_bytes: Size of one of HTML, whose tree takes about ten times as much.
        unpacked_bytes: Size of all that a DOCX file holds.
        pages: Number of pages of a PDF.
        chars: Number of characters of the text.
        memory_bytes: Address space of the process.
        seconds: Time for the largest file, after which the process is killed.
    """

    file_bytes: int = 512 << 20
    html_bytes: int = 32 << 20
    unpacked_bytes: int = 256 << 20
    pages: int = 10_000
    chars: int = 20_000_000
    memory_bytes: int = 2 << 30
    seconds: float = 120.0

    def allow_seconds(self, n_bytes: int) -> float:
        """Return the time that a file may take: a small one must not hold up an ingest for long."""
        return min(self.seconds, 10.0 + 30.0 * n_bytes / (1 << 20))


LIMITS = DocumentLimits()


def missing() -> list[str]:
    """Return the libraries that are not installed: with them, a folder would read differently."""
    return find_missing(LIBRARIES)


class Parser:
    """Parses documents one after another, in a process that is started for the first one. Close it."""

    def __init__(self, limits: DocumentLimits = LIMITS, chunking: Chunking = CHUNKING) -> None:
        self._limits, self._chunking = limits, chunking
        self._process: subprocess.Popen[bytes] | None = None

    def record(self, path: Path, where: str, about: Metadata, done: int) -> CorpusRecord:
        """Return the passages of a file, and what of it cannot be parsed within the limits.

        Args:
            path: The file.
            where: Name from which ids are made: `report.pdf#p3-1` is the first passage of page 3, and
                `notes.html#0` that of a document without pages.
            about: Metadata of all passages; those of page and heading are added.
            done: Progress after it.
        """
        try:
            document = self._reply(path)
        except CorpusError as error:
            return CorpusRecord(where, done, problem=str(error))
        passages = tuple(self._passages(document, document["title"] or path.stem, where, about))
        return CorpusRecord(where, done, passages, problem=document["missing"])

    def _passages(
        self, document: dict[str, Any], title: str, where: str, about: Metadata
    ) -> Iterator[Passage]:
        for part in document["parts"]:
            page, text, end = part["page"], part["text"], 0
            places = [place for place, _ in part["headings"]]
            for n, (begin, till) in enumerate(cut_spans(text, self._chunking)):
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
        if (n_bytes := path.stat().st_size) > self._limits.file_bytes:
            raise CorpusError(f"has more than {self._limits.file_bytes:,} bytes")
        process, seconds = self._running(), self._limits.allow_seconds(n_bytes)
        assert process.stdin is not None
        assert process.stdout is not None
        begun, timer = time.monotonic(), threading.Timer(seconds, process.kill)
        timer.start()
        try:
            request = {"path": os.fspath(path), **asdict(self._limits)}
            with contextlib.suppress(BrokenPipeError):  # it has died, as reading its reply shows
                process.stdin.write(json.dumps(request).encode() + b"\n")
                process.stdin.flush()
            line = process.stdout.readline()
        finally:
            timer.cancel()
        if not line.endswith(b"\n"):
            code = process.wait()
            self.close()
            if time.monotonic() - begun >= seconds:
                raise CorpusError(f"was not parsed within {seconds:.3g} s")
            raise CorpusError(
                f"its parser crashed (exit code {code}), "
                f"or needed more than {self._limits.memory_bytes >> 20:,} MiB of memory"
            )
        reply: dict[str, Any] = json.loads(line)
        if "problem" in reply:
            self.close()  # what has failed half way may still hold memory
            remedy = f": {install_command([reply['module']])}" if "module" in reply else ""
            raise CorpusError(f"{reply['problem']}{remedy}")
        return reply

    def _running(self) -> subprocess.Popen[bytes]:
        """Return the process, started anew where none runs."""
        if self._process is not None and self._process.poll() is not None:
            self.close()  # it ended after its last reply, as one whose time was just over
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


MARKDOWN_SUFFIXES = (".md", ".markdown")

TEXTS = ("*.md", "*.markdown", "*.txt", "*.text", "*.adoc", "*.asciidoc", "*.srt", "*.vtt", "readme")
"""Names and endings of texts, besides those that Pygments has a lexer for."""

FORMATS = (*tables.SUFFIXES, *DOCUMENT_SUFFIXES)
"""Endings of the files that are not read as they stand."""

APART = (".tar", ".jsonl", ".gz")
"""Endings of what is not read in a compressed file, besides `FORMATS`."""

SOFT_HYPHEN = "\xad"

DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error)
"""What reading a compressed file raises that is damaged or truncated."""

SNIFFED_BYTES = 1 << 16
"""Where a text shows that it is none, before all of it is in memory."""

PEEKED_BYTES = 4096
"""By which a file without a known ending shows that it is a text."""

LEAST_PRINTABLE = 0.95
"""Share of printable characters, and of white space, that a text has at least."""

NO_TEXTS = re.compile(
    r"\.(7z|a|asc|bak|bin|bz2|cer|class|crt|csr|dat|db|deb|dll|doc|dump|dylib|env|epub|exe|gpg|ipynb|iso|jar|key"
    r"|lock|log|map|mdb|o|odp|ods|odt|out|parquet|part|pem|pid|ppt|pptx|pyc|rar|rpm|rtf|so|sqlite|swp|tar|tgz"
    r"|tmp|wasm|whl|xls|xlsx|xz|zip|zst)"
)
"""Endings of files that are not read whatever they hold: logs, keys, archives, what programs write."""

IGNORED = (".", "~$", "armwise.yaml", "serve_config.yaml")
"""How names begin of hidden files, of the marks of documents that are open in Word, and of configurations."""

MEDIA = re.compile("image|audio|video|font")

PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY")

FENCED = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)

HEADING = re.compile(r"^#{1,6}[ \t]+(\S.*)$", re.MULTILINE)


class Folder:
    """The files of known formats below a folder, or one of them; hidden files are ignored.

    A link is read if it leads to a file of the folder that is not hidden. Other links, pipes and devices, and
    files of other formats, are left out, and listed. What a hard link shares with a file elsewhere cannot be
    known.

    Args:
        path: The folder, or the file.
        chunking: How texts are cut into passages.
    """

    def __init__(self, path: Path, chunking: Chunking = CHUNKING) -> None:
        self._chunking = chunking
        self.name = path.name if path.is_dir() else path.stem
        self.place = str(path)
        self._path = path
        self._root = path if path.is_dir() else path.parent
        self._plain: dict[Path, bool] = {}  # what a file of no known ending is stays so during a reading

    def fingerprint(self) -> str:
        """Hash path, size and time of change of every file, what is left out, and what is missing to read."""
        files, left_out = self._files()
        lacks = missing() if any(path.suffix.lower() in DOCUMENT_SUFFIXES for path in files) else []
        # a file of no known format may be one that is written meanwhile, such as the log of the service
        links = [f"{printable(path)} {reason}" for path, reason in left_out if is_readable(path)]
        return hash_files(" ".join([self.place, str(self._chunking), *lacks, *links]), files)

    def total(self) -> int | None:
        """Return the bytes of all files."""
        return sum(path.stat().st_size for path in self._files()[0])

    def records(self, start: int = 0) -> Iterator[CorpusRecord]:
        """Yield one record per file, and per row of a table, then one per file that is left out.

        A file without any passage has a problem.
        """
        done = 0
        files, left_out = self._files()
        with contextlib.closing(Parser(chunking=self._chunking)) as parser:
            for path in files:
                before, done = done, done + path.stat().st_size
                if start and path.suffix.lower() not in tables.SUFFIXES:
                    start -= 1
                    continue
                for record in self._read(path, before, done, parser):
                    if start == 0:
                        yield record
                    start = max(0, start - 1)
        for path, reason in left_out[start:]:
            yield CorpusRecord(self._about(path)[0], done, problem=reason, left_out=True)

    def _read(self, path: Path, before: int, done: int, parser: Parser) -> Iterator[CorpusRecord]:
        """Yield the records of a file: at least one."""
        where, about = self._about(path)
        if before == done:
            yield CorpusRecord(where, done, problem="is empty", left_out=True)
        elif path.suffix.lower() in tables.SUFFIXES:
            rows = tables.read_table(path, where, about, before, self._chunking)
            yield next(rows, CorpusRecord(where, done, problem="has no rows"))
            yield from rows
        else:
            if path.suffix.lower() in DOCUMENT_SUFFIXES:
                record = parser.record(path, where, about, done)
            else:
                record = read_text(path, where, about, done, self._chunking)
            yield record if record.passages or record.problem else replace(record, problem="has no text")

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
            if path.is_symlink() and (reason := self._leaves(path)):
                left_out.append((path, reason))
            elif path.is_file() and (is_readable(path) or self._is_plain(path)):
                files.append(path)
            elif not path.is_dir():
                left_out.append((path, _unread(path)))
        return files, left_out

    def _is_plain(self, path: Path) -> bool:
        if path not in self._plain:
            self._plain[path] = is_plain_text(path)
        return self._plain[path]

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


def is_readable(path: Path) -> bool:
    """Return whether a file of this name is read: a document, a table, a text, source code or data.

    A compressed one is, unless its name says that it is no text: it is known for sure once it is read.

    >>> [is_readable(Path(name)) for name in ("a.PDF", "a.rst", "a.json", "a.yaml", "a.py", "a.png", "a.zip")]
    [True, True, True, True, True, False, False]
    >>> [is_readable(Path(name)) for name in ("README.gz", "a.txt.gz", "a.Debian.gz", "a.tar.gz", "a.csv.gz")]
    [True, True, True, False, False]
    """
    if (inner := _strip_gz(path)) != path:
        return inner.suffix.lower() not in (*FORMATS, *APART) and not _medium(inner)
    name = path.name.lower()
    endings = (f"*{name[at:]}" for at, character in enumerate(name) if character == ".")
    is_text = not _texts().isdisjoint((name, *endings)) and not _medium(path)
    return path.suffix.lower() in FORMATS or is_text


def is_plain_text(path: Path) -> bool:
    """Return whether a file of no known ending begins as a text: UTF-8, without NUL, nearly all printable."""
    if NO_TEXTS.fullmatch(path.suffix.lower()) or _medium(path) or _strip_gz(path) != path:
        return False
    try:
        with path.open("rb") as stored:
            begin = stored.read(PEEKED_BYTES)
        # a character that the last byte cuts is none that is wrong
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(begin)
    except (OSError, UnicodeDecodeError):
        return False
    printable_n = sum(character.isprintable() or character.isspace() for character in text)
    return "\0" not in text and bool(text.strip()) and printable_n >= LEAST_PRINTABLE * len(text)


def _strip_gz(path: Path) -> Path:
    """Return the path that a compressed file has when it is unpacked; of another file, its own."""
    return path.with_suffix("") if path.suffix.lower() == ".gz" else path


@functools.cache
def _texts() -> frozenset[str]:
    """Return the names and the endings, each after a star, of texts, source code and data."""
    lexers = get_all_lexers(plugins=False)
    return frozenset((*TEXTS, *(pattern.lower() for lexer in lexers for pattern in lexer[2])))


def _medium(path: Path) -> str:
    """Return the type of a picture, a sound or a film, such as `image/png`; empty for other files."""
    # not the types that the files of a system add, which would make it a matter of the machine
    kind = mimetypes.MimeTypes().types_map[True].get(path.suffix.lower(), "")
    return kind if MEDIA.match(kind) else ""


def _unread(path: Path) -> str:
    """Return why what is no readable file is left out."""
    if not path.is_file():
        return "is not a regular file, and is not read"
    if (inner := _strip_gz(path)) != path:
        kind = "archive" if inner.suffix.lower() == ".tar" else f"{inner.suffix.lower()} file"
        return f"is a compressed {kind}: of compressed files only texts are read, unpack it"
    if medium := _medium(path):
        return f"is {medium}, which has no text to read"
    return f"is of no format that is read ({', '.join(FORMATS)}, text, source code; JSON lines by themselves)"


def _is_hidden(path: Path) -> bool:
    """Return whether a path below a folder is that of a hidden file, or within a hidden folder."""
    return any(part.startswith(IGNORED) for part in path.parts)


def read_text(path: Path, where: str, about: Metadata, done: int, chunking: Chunking) -> CorpusRecord:
    """Return the passages of a text file, plain or `.gz`: UTF-8, UTF-16, or Windows-1252."""
    inner, wrong_line = _strip_gz(path), 0
    try:
        try:
            text = _text(path)
        except UnicodeDecodeError as error:
            wrong_line = bytes(error.object[: error.start]).count(b"\n") + 1
            text = _windows_text(error, wrong_line)
        markdown = inner.suffix.lower() in MARKDOWN_SUFFIXES
        metadata, text = front_matter(where, text) if markdown else ({}, text)
    except CorpusError as error:
        return CorpusRecord(where, done, problem=str(error))
    title = (markdown_title(text) if markdown else "") or inner.stem
    pieces = enumerate(chunks(text, chunking))
    passages = tuple(
        Passage(f"{where}#{n}", title, piece, metadata={**metadata, **about}) for n, piece in pieces
    )
    if wrong_line and passages:
        return CorpusRecord(f"{where}:{wrong_line}", done, passages, READ_AS_WINDOWS, left_out=True)
    return CorpusRecord(where, done, passages)


def _windows_text(error: UnicodeDecodeError, line: int) -> str:
    """Return a text that is not UTF-8 as Windows-1252. Raises CorpusError unless all is printable."""
    if error.encoding == "utf-8":
        with contextlib.suppress(UnicodeDecodeError):
            text = bytes(error.object).decode("cp1252")
            if all(c.isprintable() or c.isspace() or c == SOFT_HYPHEN for c in text):
                return text.replace("\r\n", "\n")
    raise CorpusError(
        f"the whole file is skipped because line {line} has a byte that is not {error.encoding.upper()} "
        f"({error.reason}): save it as UTF-8"
    )


def _text(path: Path) -> str:
    """Return the text of a file. Raises CorpusError, UnicodeDecodeError."""
    limit, packed = LIMITS.file_bytes, _strip_gz(path) != path
    if path.stat().st_size > limit:
        raise CorpusError(f"has more than {limit:,} bytes")
    try:
        with gzip.open(path) if packed else path.open("rb") as stored:
            content = stored.read(SNIFFED_BYTES)
            wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
            if PRIVATE_KEY.match(content):
                raise CorpusError("is a private key, so it is not read")
            if b"\0" not in content or wide:
                content += stored.read(max(0, limit + 1 - len(content)))
    except DAMAGED as error:
        raise CorpusError(f"is damaged gzip: {error}") from None
    if len(content) > limit:
        raise CorpusError(f"has more than {limit:,} bytes{' unpacked' * packed}")
    encoding, refused = "utf-16" if wide else "utf-8-sig", b"\0" in content and not wide
    text = content.decode(encoding, errors="replace" if refused else "strict")
    before, nul, _ = text.partition("\0")
    if nul:
        line = before.count("\n") + 1
        raise CorpusError(f"is not text: line {line} has a NUL")
    return text.replace("\r\n", "\n")


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


WRITERS = {"stdlib": stdlib, "language": language}
"""Modules that write the built-in sources."""

JSONL_SUFFIXES = (".jsonl", ".jsonl.gz")


class PassageSource(Protocol):
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

    def records(self, start: int = 0) -> Iterator[CorpusRecord]:
        """Yield the records after the first `start`. Raises CorpusError when the source is unreadable."""
        ...


def open_source(source: str | Path, chunking: Chunking = CHUNKING) -> PassageSource:
    """Return the source at a path, or a built-in one: `stdlib` or `language`.

    Write `./stdlib` for a folder of that name. The texts of all sources but JSON lines are cut by `chunking`.

    Raises:
        CorpusError: The path does not exist, or has an unknown format.
    """
    if source in BUILT_IN:
        return BuiltIn(str(source), chunking)
    path = Path(source).resolve()
    if path.is_dir():
        beir = [path / f"corpus{suffix}" for suffix in JSONL_SUFFIXES if (path / f"corpus{suffix}").is_file()]
        if beir and not beir[0].resolve().is_relative_to(path):
            raise CorpusError(f"{beir[0]} links to a file outside the folder: to read it, name that file")
        return JsonLines(beir[0], name=path.name) if beir else Folder(path, chunking)
    path = Path(os.path.abspath(source))  # its own name: that of a link, whose target may have another ending
    if not path.is_file():
        names = " or ".join(map(repr, BUILT_IN))
        raise CorpusError(f"no corpus at {path}: expected a file, a folder, {names}")
    if path.name.endswith(JSONL_SUFFIXES):
        return JsonLines(path, name=path.name.partition(".")[0])
    if not (is_readable(path) or is_plain_text(path)):
        raise CorpusError(f"cannot read {path}: it {_unread(path)}")
    return Folder(path, chunking)


class JsonLines:
    """One JSON object a line, `{"id" or "_id", "title"?, "text", "metadata"?}`; may be gzipped."""

    def __init__(self, path: Path, name: str) -> None:
        self.name = name
        self.place = str(path)
        self._path = path

    def fingerprint(self) -> str:
        """Hash path, size and time of change."""
        return hash_files(self.place, [self._path])

    def total(self) -> int | None:
        """Return the size of the file in bytes, as stored."""
        return self._path.stat().st_size

    def records(self, start: int = 0) -> Iterator[CorpusRecord]:
        """Yield one record per line; a blank line has no passages and no problem."""
        with self._path.open("rb") as stored:
            packed = self._path.suffix == ".gz"
            lines = io.BufferedReader(gzip.GzipFile(fileobj=stored)) if packed else stored
            numbered = enumerate(_until_broken(lines, self._path), start=1)
            for number, line in itertools.islice(numbered, start, None):
                where = f"{self._path.name}:{number}"
                try:
                    yield CorpusRecord(
                        where, stored.tell(), _parse(line if number > 1 else _without_bom(line))
                    )
                except CorpusError as error:
                    yield CorpusRecord(where, stored.tell(), problem=str(error))


class BuiltIn:
    """What the interpreter has of its own, read by a process of the module that writes it.

    The passages about `heapq` in `stdlib` have the ids `heapq`, `heapq#1`, `heapq#2`, and so have those of a
    topic in `language`.

    Args:
        name: One of `BUILT_IN`.
        chunking: How texts are cut into passages.
    """

    def __init__(self, name: str, chunking: Chunking = CHUNKING) -> None:
        self._chunking = chunking
        self.name = self.place = name
        self._module, self._what = WRITERS[name], BUILT_IN[name]

    def fingerprint(self) -> str:
        """Hash the version and the build of the interpreter."""
        return hash_files(f"{self.name} {self._chunking} {sys.version} {sys.platform}", [])

    def total(self) -> int | None:
        """Return None: unknown before it is read."""
        return None

    def records(self, start: int = 0) -> Iterator[CorpusRecord]:
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
            pieces = enumerate(chunks(whole.text, self._chunking))
            named = ((f"{whole.id}#{n}" if n else whole.id, piece) for n, piece in pieces)
            yield CorpusRecord(
                whole.id, done, tuple(Passage(name, whole.title, piece) for name, piece in named)
            )


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
        raise CorpusError(f"needs a non-empty 'id' or '_id', got {short(name)}")
    if not isinstance(text, str) or not text.strip():
        raise CorpusError(f"passage {name!r} needs a non-empty 'text', got {short(text)}")
    if not isinstance(title, str | None):
        raise CorpusError(f"the title of passage {name!r} is not text: {short(title)}")
    if "\0" in f"{name}{title}{text}":
        raise CorpusError(f"passage {name!r} has a NUL in its id, title or text")
    return (Passage(name, title or "", text, metadata=check_metadata(name, row.get("metadata"))),)


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
    except DAMAGED as error:
        raise CorpusError(f"{path.name}:{number + 1}: damaged gzip: {error}") from error
