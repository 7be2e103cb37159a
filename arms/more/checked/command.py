"""A check by a command of the operator: the answer on its standard input, the verdict by its exit code.

The command is a list of words of the configuration file, started without a shell in an empty folder of its
own, with none of our variables but PATH. It is limited in time, memory and output, but it is no sandbox: it
runs as the user of the service. A command that runs code out of an answer has to confine it.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from armwise.arms.base import Passage
from armwise.arms.llm import UNPROMPTED, Bound, Write
from armwise.arms.more.checked import confined
from armwise.arms.retrievers import CheckResult
from armwise.number import Number

OUTPUT = 64 << 10
"""Most bytes that a command prints, and of a file that it writes."""

MOST_SAID = 500
"""Most bytes of what a command printed that its result quotes."""

PATIENCE_S = 10.0
"""Seconds beyond the limits after which the process that keeps to them is killed itself."""


@dataclass(frozen=True, slots=True)
class CommandLimits:
    """CommandLimits of a command.

    Attributes:
        seconds: Most seconds that it runs, above 0.
        memory: Most bytes of memory of each of its processes.
        output: Most bytes that it prints, and of a file that it writes.
    """

    seconds: float
    memory: int
    output: int


def run_confined(command: Sequence[str], given: str, limits: CommandLimits) -> tuple[int, str, str]:
    """Run a command in an empty folder of its own, without the variables of this process but PATH.

    Args:
        command: Program and arguments.
        given: What the command reads from its standard input.
        limits: CommandLimits of the command.

    Returns:
        The exit code of `confined`, and the ends of the standard output and of the standard error.
    """
    words = [sys.executable, "-I", "-S", str(Path(confined.__file__)), json.dumps(asdict(limits)), *command]
    with (
        tempfile.TemporaryDirectory(prefix="armwise-check-") as folder,
        tempfile.TemporaryFile() as read,
        tempfile.TemporaryFile() as printed,
        tempfile.TemporaryFile() as complaints,
    ):
        read.write(given.encode(errors="replace"))
        read.seek(0)
        environment = {"PATH": os.environ.get("PATH", os.defpath)}
        process = subprocess.Popen(
            words,
            stdin=read,
            stdout=printed,
            stderr=complaints,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
        try:
            code = process.wait(limits.seconds + confined.KILLING_S + PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code = confined.OUT_OF_TIME
        return code, _last(printed), _last(complaints)


class CommandCheck(BaseModel):
    """A command that you provide checks the answer."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    by: Literal["command"] = Field(description="A command of the operator checks the answer.")
    command: Annotated[tuple[Annotated[str, Field(pattern=r"^[^\x00]+$")], ...], Field(min_length=1)] = Field(
        description=(
            "Program and arguments, without a shell. It reads the answer from standard input. Exit code 0 "
            "means that the answer passes."
        )
    )
    scored: bool = Field(
        default=False,
        description="Whether the last printed line is a score from 0 to 1. If the exit code is not 0, the "
        "score is 0.",
    )
    seconds: Number = Field(default=5.0, gt=0, le=300, description="Maximum running time in seconds.")
    memory_mib: int = Field(
        default=1024, ge=16, le=1 << 20, description="Maximum memory of each process, in MiB."
    )

    @property
    def llm(self) -> None:
        """It prompts no language model."""

    def compute_bound(self, answer_tokens: int) -> Bound:
        """Return the bound of no prompt."""
        del answer_tokens
        return UNPROMPTED

    def __call__(self, question: str, passages: Sequence[Passage], answer: str, write: Write) -> CheckResult:
        """Return what the command says of an answer; one that does not end as it should has failed it."""
        del question, passages, write
        limits = CommandLimits(self.seconds, self.memory_mib << 20, OUTPUT)
        code, printed, complaints = run_confined(self.command, answer, limits)
        return self._read(code, printed, complaints or printed)

    def _read(self, code: int, printed: str, said: str) -> CheckResult:
        """Return the result of an exit code and of what was printed."""
        if code == confined.OUT_OF_TIME:
            return CheckResult(0.0, f"no exit within {self.seconds:g} s")
        if code:
            return CheckResult(0.0, f"exit code {code}: {said}" if said else f"exit code {code}")
        if not self.scored:
            return CheckResult(1.0, said)
        line = printed.strip().rpartition("\n")[2].strip()
        try:
            score = float(line)
        except ValueError:
            score = math.nan
        if not 0.0 <= score <= 1.0:
            return CheckResult(0.0, f"no score in [0, 1] on the last line: {line!r}")
        return CheckResult(score, said)


def _last(file: IO[bytes]) -> str:
    """Return the end of what was written to a file, cut at `MOST_SAID` bytes."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - MOST_SAID))
    return file.read().decode(errors="replace").strip()
