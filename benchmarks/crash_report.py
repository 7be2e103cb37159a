"""The matrix: what was killed, at which step, and what came of it."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.crash_audit import Fault, Verdict
from benchmarks.crash_points import STEPS
from benchmarks.crash_rounds import ANY_MOMENT, VICTIMS
from benchmarks.crash_service import Kill
from benchmarks.crash_weather import Outage

CAPTION = """\
rows: acknowledged around these kills; lost: of these; twice: decisions in the training log more than once
digests equal: of the versions, to a replay from the first fact; other: any other fault
answers, and has learned all of the log, again after so many seconds: median / longest"""

SHOWN = 5
"""Faults of a log that are printed one by one."""


@dataclass
class Run:
    """A log, from its first fact to its check.

    Attributes:
        database: Where it is kept.
        policy: How its policy comes back, as `POLICIES` says it.
        kills: What it went through.
        outages: What else it went through.
        verdict: What was found.
        odd: Answers that no client should have got.
        stranded: Processes that ended by themselves.
    """

    database: str
    policy: str
    kills: list[Kill] = field(default_factory=list)
    outages: list[Outage] = field(default_factory=list)
    verdict: Verdict = field(default_factory=Verdict)
    odd: list[str] = field(default_factory=list)
    stranded: int = 0

    @property
    def broken(self) -> bool:
        """Whether a promise was broken."""
        weather = any(outage.odd for outage in self.outages)
        return bool(self.verdict.faults or self.odd or weather)

    def blamed(self, fault: Fault) -> int:
        """Return the number of the kill that a fault came with; one more than the last if it is unknown."""
        if fault.round is not None:
            return fault.round
        return len(self.kills) if fault.version is None else self.published(fault.version)

    def published(self, version: int) -> int:
        """Return the number of the kill around which a version was published."""
        return int(np.searchsorted([kill.version for kill in self.kills], version))


@dataclass
class Row:
    """The kills of one victim at one step.

    Attributes:
        kills: These.
        faults: That are theirs.
        versions: That were published since the kill before each of them was over.
    """

    kills: list[Kill] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    versions: int = 0

    def cells(self) -> list[str]:
        """Return what the table says of them."""
        kinds = Counter(fault.kind for fault in self.faults)
        lost, twice, differing = (kinds.pop(kind, 0) for kind in ("lost", "twice", "digest"))
        answers, learns = ([getattr(kill, what) for kill in self.kills] for what in ("answers_s", "learns_s"))
        return [
            str(len(self.kills)),
            str(sum(kill.acknowledged for kill in self.kills)),
            _alarm(lost),
            _alarm(twice),
            _alarm(differing, f"{self.versions - differing} of {self.versions}"),
            _alarm(kinds.total()),
            _seconds(answers),
            _seconds(learns),
        ]


def _alarm(number: int, shown: str = "") -> str:
    shown = shown or str(number)
    return f"[bold red]{shown}[/]" if number else shown


def _seconds(took: list[float]) -> str:
    return f"{np.median(took):.2f} / {max(took):.2f}" if took else ""


def table_of(database: str, runs: list[Run]) -> Table:
    """Return the matrix of one database."""
    table = Table(title=f"kill -9, {database}", caption=CAPTION, box=box.SIMPLE_HEAD)
    for name in ("victim", "step"):
        table.add_column(name, no_wrap=True)
    for name in (
        "kills",
        "rows",
        "lost",
        "twice",
        "digests equal",
        "other",
        "answers",
        "learns",
    ):
        table.add_column(name, no_wrap=True, justify="right")
    rows: defaultdict[tuple[str, str], Row] = defaultdict(Row)
    total = Row()
    for run in runs:
        rows_of = [rows[kill.victim, kill.step] for kill in run.kills] + [Row()]  # the last is of no kill
        for kill, row in zip(run.kills, rows_of, strict=False):
            row.kills.append(kill)
        for version in run.verdict.versions:
            rows_of[run.published(version)].versions += 1
        for fault in run.verdict.faults:
            rows_of[run.blamed(fault)].faults.append(fault)
        total.kills += run.kills
        total.versions += len(run.verdict.versions)
        total.faults += run.verdict.faults
    for victim in VICTIMS.values():
        for step in (*STEPS, ANY_MOMENT):
            if (victim, step) in rows:
                table.add_row(victim, step, *rows[victim, step].cells())
        table.add_section()
    table.add_row("all", "", *total.cells())
    return table


def report(runs: list[Run], console: Console) -> None:
    """Print the matrix of each database, and what else there is to say of each log."""
    for database in dict.fromkeys(run.database for run in runs):
        console.print(table_of(database, [run for run in runs if run.database == database]))
    for run in runs:
        v = run.verdict
        console.print(
            f"{run.database}, {run.policy}: {len(run.kills)} kills, {v.facts} facts, {v.examples} examples; "
            f"{len(v.versions)} versions replayed, {v.decisions} distributions computed again; "
            f"{len(v.faults)} faults; {run.stranded} processes ended by themselves and were started again"
        )
        for outage in run.outages:
            console.print(f"  {outage}")
        for what in [*(f"{fault.kind}: {fault.what}" for fault in v.faults), *run.odd][:SHOWN]:
            console.print(f"  {what[:300]}", style="red", markup=False, highlight=False)
