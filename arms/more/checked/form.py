"""Validate answers against JSON schemas, in other processes and within a time limit.

A schema is a program: its patterns, its references and `uniqueItems` can take hours for some answers. The
process stays for the next answer, since starting Python takes 0.15 s of a core and validating a usual answer
0.02 ms. If an answer exceeds the time limit, the process is killed, and the next answer starts another one.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, cast

from armwise.arms.base import ArmError

SECONDS = 5.0
"""Most seconds that a validation takes, with the wait for those before it."""

MEMORY = 1 << 30
"""Most bytes of memory of a process that validates."""

WORDS = (sys.executable, "-I", str(Path(__file__).with_name("_validate.py")), str(MEMORY))


class Validator:
    """Validates answers in a process of its own, one at a time; thread-safe.

    Attributes:
        process: The process, once there was an answer; None after a failure.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.process: subprocess.Popen[str] | None = None
        self._end: Callable[[], Any] = lambda: None

    def find_error(self, schema: str, answer: str) -> str:
        """Return what is wrong with an answer; empty if it is a JSON value that satisfies the schema.

        Args:
            schema: Text of a JSON schema, from any source. Nothing that it refers to is fetched.
            answer: Text of the answer.

        Raises:
            ArmError: It cannot be known, or not within `SECONDS`.
        """
        until = time.monotonic() + SECONDS
        if not self._lock.acquire(timeout=SECONDS):
            raise ArmError(
                f"the answer was not validated within {SECONDS:g} s: other answers were queued before it"
            )
        try:
            valid, said = self._validate(schema, answer, until)
        finally:
            self._lock.release()
        if valid is None:
            raise ArmError(f"the answer cannot be validated: {said}")
        return "" if valid else said

    def _validate(self, schema: str, answer: str, until: float) -> tuple[bool | None, str]:
        if self.process is None or self.process.poll() is not None:
            self._start()
        process, self.process = cast("subprocess.Popen[str]", self.process), None
        given, replies = cast("IO[str]", process.stdin), cast("IO[str]", process.stdout)
        left = max(until - time.monotonic(), 0.001)  # 0 would be no limit
        try:
            given.write(json.dumps([schema, answer, left]) + "\n")
            given.flush()
            valid, said = json.loads(replies.readline())
        except (OSError, ValueError):  # it has ended, and its reply is missing
            self._end()
            if process.returncode == -signal.SIGALRM:
                raise ArmError(f"the answer was not validated within {SECONDS:g} s") from None
            code = process.returncode
            raise ArmError(f"the answer was not validated: its process ended with code {code}") from None
        self.process = process  # only now: after a failure, its next reply could be to an earlier answer
        return valid, said

    def _start(self) -> None:
        self._end()
        self.process = subprocess.Popen(
            WORDS,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="ascii",
            cwd="/",
            env={"PATH": os.environ.get("PATH", os.defpath)},
            start_new_session=True,
        )
        self._end = weakref.finalize(self, _end, self.process)


def _end(process: subprocess.Popen[str]) -> None:
    """End a process, and close its pipes."""
    with suppress(OSError), process:
        process.kill()


@lru_cache(16)
def open_validator(purpose: str) -> Validator:
    """Return the validator for a purpose. Answers for different purposes do not wait for each other."""
    del purpose
    return Validator()


def satisfies(schema: Mapping[str, Any], answer: str) -> bool | None:
    """Return whether an answer satisfies the schema of its request; None if that cannot be known.

    It blocks, for at most `SECONDS`.
    """
    try:
        return not open_validator("requests").find_error(json.dumps(schema), answer)
    except ArmError:
        return None
