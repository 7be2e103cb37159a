"""Passages of PDF, HTML and DOCX files, which another process parses: `arms.corpus.documents`."""

import contextlib
import importlib.util
import json
import os
import select
import subprocess
import sys
import time
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from arms.base import Passage
from arms.corpus import documents
from arms.corpus.chunking import WORD, spans_of
from arms.corpus.records import CorpusError
from arms.filters import Metadata

SUFFIXES = tuple(documents.READERS)

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
        found = self._reply(path)
        title = found["title"] or path.stem
        for part in found["parts"]:
            page, text, end = part["page"], part["text"], 0
            places = [place for place, _ in part["headings"]]
            for n, (begin, till) in enumerate(spans_of(text)):
                name = f"{where}#{n}" if page is None else f"{where}#p{page}-{n + 1}"
                # what the passage repeats of the one before may be of an earlier section
                new = WORD.search(text, max(begin, end))
                above = bisect_right(places, end if new is None else new.start())
                own = {} if page is None else {"page": page}
                own |= {"heading": part["headings"][above - 1][1]} if above else {}
                yield Passage(name, title, text[begin:till], metadata={**about, **own})
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
        found: dict[str, Any] = json.loads(line)
        if "problem" in found:
            self.close()  # what has failed half way may still hold memory
            raise CorpusError(found["problem"])
        return found

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
            # -P: not the folder of this file, whose modules are not to be found by their bare names
            self._process = subprocess.Popen(
                [sys.executable, "-P", documents.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={name: os.environ[name] for name in GIVEN if name in os.environ},
            )
        return self._process
