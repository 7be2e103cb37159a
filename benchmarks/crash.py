"""What survives kill -9: a service under traffic, killed at every step, and its log checked to the last row.

    python benchmarks/crash.py [--kills 200] [--database sqlite] [--ray 20] [--single 20] [--seed 7]

Real processes, a real database, HTTP: an ingress replica, the learner and the database server are
killed, each by itself and all at once, at every step of decide, commit, answer, feedback, join, learn,
checkpoint and publish, and while they start. Clients send again what was not answered, and write
down what was. One half of the kills meets a policy that resumes from a checkpoint, the other half
one that is replayed from the log. Afterwards every acknowledgement is looked up in the log, the
training log is folded again from the first fact, every version is replayed from the start and
compared by digest, and every distribution is computed again from the version that it names.

Then the weather gets bad: the database is away, or the disk is full. With `--ray N`, the service of
Ray Serve is killed N more times, with `--single N` that of one process. `--sabotage early` (a replica
acknowledges before it commits) and `--sabotage twice` (a learner learns twice what it learns first after
its start) show what the table looks like where a promise is broken.

Ends with 1 where anything was lost, changed, learned twice or different from the replay.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import orjson
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import crash_ray
from benchmarks.crash_children import BAGGED, EXACT
from benchmarks.crash_report import Run, report
from benchmarks.crash_rounds import plan, stage
from benchmarks.crash_seams import SABOTAGE
from benchmarks.crash_weather import database_away, endure, full, no_file_grows, small_disk
from tests.postgres import Server, running

POLICIES = {"resumes": EXACT, "is replayed": BAGGED}
WIDTH = 118
"""Of the table, also where it is printed into a file."""

OUTAGES, OUTAGE_S = 3, 2.0
"""Of each database, and how long each lasts at least."""


class Database(StrEnum):
    """Where a log can be kept."""

    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"


@contextmanager
def log_of(database: Database, folder: Path) -> Iterator[tuple[str, Server | None]]:
    """Yield the URL of an empty log, and the server that keeps it, if one does."""
    if database is Database.SQLITE:
        yield f"sqlite:///{folder / 'log.db'}", None
    else:
        with running() as server:
            yield server.fresh(), server


def killed(database: Database, policy: str, kills: int, seed: int, sabotage: str, progress: Progress) -> Run:
    """Kill one service again and again, and check its log."""
    run = Run(database.value, policy)
    bar = progress.add_task(f"{database.value}, {policy}", total=kills)
    with TemporaryDirectory() as name, log_of(database, Path(name)) as (url, server):
        cases = plan(kills, seed, database=server is not None)
        with stage(url, POLICIES[policy], Path(name), server, seed=seed, sabotage=sabotage) as service:
            for case in cases:
                service.strike(case)
                progress.advance(bar)
            run.verdict = service.end()
            run.kills, run.odd, run.stranded = service.kills, service.ledger.odd, service.stranded
    return run


def killed_as_served(
    database: Database, kills: int, seed: int, progress: Progress, way: crash_ray.Way
) -> Run:
    """Kill processes of `armwise serve`, and check the log."""
    run = Run(database.value, way.name)
    bar = progress.add_task(f"{database.value}, {way.name}", total=kills)
    with TemporaryDirectory() as name, log_of(database, Path(name)) as (url, server):
        cases = crash_ray.plan(kills, seed, database=server is not None, way=way)
        with crash_ray.deployed(url, EXACT, server, seed=seed, way=way) as service:
            for case in cases:
                service.strike(case)
                progress.advance(bar)
            run.verdict = service.end()
            run.kills, run.odd = service.kills, service.ledger.odd
    return run


def weathered(database: Database, seed: int) -> Run:
    """Let the disk be full, or the database away, and check the log."""
    run = Run(database.value, "bad weather")
    with TemporaryDirectory() as name, log_of(database, Path(name)) as (url, server), ExitStack() as stack:
        disk = None
        if server is None:
            with suppress(PermissionError):
                disk = stack.enter_context(small_disk(Path(name)))
                url = f"sqlite:///{disk / 'log.db'}"
        service = stack.enter_context(stage(url, EXACT, Path(name), server, seed=seed))
        for _ in range(OUTAGES):
            if server is not None:
                outage = endure(service, "database away", database_away(server), OUTAGE_S)
            elif disk is not None:
                outage = endure(service, "disk full", full(disk), OUTAGE_S)
            else:
                outage = endure(
                    service, "no file may grow", no_file_grows(service.keepers.values()), OUTAGE_S
                )
            run.outages.append(outage)
        run.verdict, run.odd, run.stranded = service.end(), service.ledger.odd, service.stranded
    return run


def main(
    kills: Annotated[int, typer.Option(min=2, help="Kills of each database.")] = 200,
    database: Annotated[Database | None, typer.Option(help="Only this one; both when left out.")] = None,
    ray: Annotated[int, typer.Option(min=0, help="Kills of the service of Ray Serve, of each database.")] = 0,
    single: Annotated[int, typer.Option(min=0, help="Kills of the service of one process likewise.")] = 0,
    seed: Annotated[int, typer.Option(help="Draws the order, the moments and the questions.")] = 7,
    sabotage: Annotated[str, typer.Option(help=f"Break a promise: {', '.join(SABOTAGE)}.")] = "",
    out: Annotated[Path | None, typer.Option(help="Where every kill is written, as JSON.")] = None,
) -> None:
    """Kill, check and print."""
    if sabotage and sabotage not in SABOTAGE:
        raise typer.BadParameter(f"{sabotage!r} is none of {', '.join(SABOTAGE)}")
    databases = [database] if database else list(Database)
    console = Console(width=WIDTH)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    runs: list[Run] = []
    with Progress(*columns, console=console) as progress:
        for kind in databases:
            for number, policy in enumerate(POLICIES):
                share = kills // 2 + (kills % 2 if number == 0 else 0)
                runs.append(killed(kind, policy, share, seed + number, sabotage, progress))
            if sabotage:
                continue
            runs.append(weathered(kind, seed))
            for number, way in ((ray, crash_ray.RAY_SERVE), (single, crash_ray.ONE_PROCESS)):
                if number:
                    runs.append(killed_as_served(kind, number, seed, progress, way))
    report(runs, console)
    if out is not None:
        out.write_bytes(orjson.dumps([asdict(run) for run in runs], option=orjson.OPT_INDENT_2))
    raise typer.Exit(any(run.broken for run in runs))


if __name__ == "__main__":
    typer.run(main)
