"""What survives kill -9: a service under traffic, killed at every step, and its log checked to the last row.

    python -m tests.crashes [--kills 200] [--database sqlite] [--ray 20] [--single 20] [--seed 7]

Real processes, a real database, HTTP: an ingress replica, the learner and the database server are killed,
each by itself and all at once, at each of the points of `points.py`. Clients send again what was not
answered, and write down what was. Half of the kills meet a policy that resumes from a checkpoint, the
others one that is replayed from the log. Then the database is away, or the disk is full. With `--ray N`,
the service of Ray Serve is killed N times, with `--single N` that of one process. Afterwards each log is
checked by `audit.py`.

Ends with 1 if anything was lost, changed, learned twice or different from the replay.
"""

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import typer

from tests.crashes import served
from tests.crashes.audit import Verdict
from tests.crashes.children import BAGGED, EXACT
from tests.crashes.rounds import plan, stage
from tests.crashes.service import Kill
from tests.crashes.weather import Outage, database_away, endure, full, no_file_grows, small_disk
from tests.postgres import Server, running

POLICIES = {"resumes": EXACT, "is replayed": BAGGED}
OUTAGES, OUTAGE_S = 3, 2.0
"""Of each database, and how long each lasts at least."""

SHOWN = 5
"""Faults of a log that are printed one by one."""


class Database(StrEnum):
    """Where a log can be kept."""

    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"


@dataclass
class Run:
    """A log, from its first fact to its check."""

    name: str
    kills: list[Kill] = field(default_factory=list)
    outages: list[Outage] = field(default_factory=list)
    verdict: Verdict = field(default_factory=Verdict)
    odd: list[str] = field(default_factory=list)

    @property
    def broken(self) -> bool:
        """Whether a promise was broken."""
        return bool(self.verdict.faults or self.odd or any(outage.odd for outage in self.outages))

    def __str__(self) -> str:
        """Return what there is to say of it: a line, and one for each outage and each of the first faults."""
        v, kinds = self.verdict, Counter(fault.kind for fault in self.verdict.faults)
        rows, took = sum(kill.acknowledged for kill in self.kills), [kill.answers_s for kill in self.kills]
        equal = len(v.versions) - kinds["digest"]
        answers = f"{np.median(took):.2f} / {max(took):.2f} s" if took else "-"
        lines = [
            f"{self.name}: {len(self.kills)} kills, {rows} rows acknowledged, {kinds['lost']} lost, "
            f"{kinds['twice']} learned twice; {equal} of {len(v.versions)} digests equal; "
            f"{len(v.faults)} faults in all, {len(self.odd)} odd answers; answers again {answers}",
            *map(str, self.outages),
            *[*(f"{fault.kind}: {fault.what}"[:300] for fault in v.faults), *self.odd][:SHOWN],
        ]
        return "\n  ".join(lines)


@contextmanager
def log_of(database: Database) -> Iterator[tuple[Path, str, Server | None]]:
    """Yield a folder, the URL of an empty log, and the server that keeps it, if one does."""
    with TemporaryDirectory() as name, ExitStack() as stack:
        if database is Database.SQLITE:
            yield Path(name), f"sqlite:///{name}/log.db", None
        else:
            server = stack.enter_context(running())
            yield Path(name), server.fresh(), server


def killed(database: Database, policy: str, kills: int, seed: int) -> Run:
    """Kill one service again and again, and check its log."""
    run = Run(f"{database}, {policy}")
    with log_of(database) as (folder, url, server):
        cases = plan(kills, seed, database=server is not None)
        with stage(url, POLICIES[policy], folder, server, seed=seed) as service:
            for case in cases:
                service.strike(case)
            run.verdict, run.kills, run.odd = service.end(), service.kills, service.ledger.odd
    return run


def killed_as_served(database: Database, kills: int, seed: int, way: served.Way) -> Run:
    """Kill processes of `armwise serve`, and check the log."""
    run = Run(f"{database}, {way.name}")
    with log_of(database) as (_, url, server):
        cases = served.plan(kills, seed, database=server is not None, way=way)
        with served.deployed(url, EXACT, server, seed=seed, way=way) as service:
            for case in cases:
                service.strike(case)
            run.verdict, run.kills, run.odd = service.end(), service.kills, service.ledger.odd
    return run


def weathered(database: Database, seed: int) -> Run:
    """Let the disk be full, or the database away, and check the log."""
    run = Run(f"{database}, bad weather")
    with log_of(database) as (folder, url, server), ExitStack() as stack:
        disk = None
        if server is None:
            with suppress(PermissionError):
                disk = stack.enter_context(small_disk(folder))
                url = f"sqlite:///{disk / 'log.db'}"
        service = stack.enter_context(stage(url, EXACT, folder, server, seed=seed))
        for _ in range(OUTAGES):
            if server is not None:
                outage = endure(service, "database away", database_away(server), OUTAGE_S)
            elif disk is not None:
                outage = endure(service, "disk full", full(disk), OUTAGE_S)
            else:
                stuck = no_file_grows(service.keepers.values())
                outage = endure(service, "no file may grow", stuck, OUTAGE_S)
            run.outages.append(outage)
        run.verdict, run.odd = service.end(), service.ledger.odd
    return run


def _runs(database: Database, kills: int, ray: int, single: int, seed: int) -> Iterator[Run]:
    for number, policy in enumerate(POLICIES):
        yield killed(database, policy, (kills + 1 - number) // 2, seed + number)
    yield weathered(database, seed)
    for number, way in ((ray, served.RAY_SERVE), (single, served.ONE_PROCESS)):
        if number:
            yield killed_as_served(database, number, seed, way)


def main(
    kills: Annotated[int, typer.Option(min=2, help="Kills of each database.")] = 200,
    database: Annotated[Database | None, typer.Option(help="Only this one; both when left out.")] = None,
    ray: Annotated[int, typer.Option(min=0, help="Kills of the service of Ray Serve, of each database.")] = 0,
    single: Annotated[int, typer.Option(min=0, help="Kills of the service of one process.")] = 0,
    seed: Annotated[int, typer.Option(help="Draws the order, the moments and the questions.")] = 7,
) -> None:
    """Kill, check and print."""
    broken = False
    for kind in [database] if database else Database:
        for run in _runs(kind, kills, ray, single, seed):
            typer.echo(str(run))
            broken |= run.broken
    raise typer.Exit(broken)


if __name__ == "__main__":
    typer.run(main)
