"""What it takes to remember: a decision and its feedback, committed to each database that can keep a log.

    python benchmarks/log.py [--database both] [--pairs 200] [--rounds 10] [--folder FOLDER] [--url URL]

Both sides write the same columns of the same tables under the same settings, and a commit is on the disk
when it returns. The bare side is what SQLAlchemy Core takes if it is handed finished rows: begin, insert,
insert, commit. Ours starts from the facts, numbers them, refuses conflicts, and finds
repetitions. Rounds alternate; `group commit` has that many requests waiting for their own pair at any
time. PostgreSQL is the one that the tests start, on a disk of this machine; or that of `--url`, an empty
database of which nothing is left.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import sqlalchemy as sa
import typer
from rich.console import Console
from rich.table import Table

from armwise.feedback.events import Context, Decision, Feedback
from armwise.feedback.log import GroupCommit, Store, tables
from armwise.feedback.log.database import open_database
from armwise.feedback.log.facts import decision_row, feedback_row

sys.path.insert(0, str(Path(__file__).parents[1]))

WRITERS = (1, 8, 32, 128)
MORE = 10
"""Times as many pairs where several share a commit, so that a round lasts long enough to be timed."""

ARMS = ("none", "bm25", "dense", "rrf")
GOAL_COMMIT = 1.5
GOAL_GROUP = {"SQLite": 5, "PostgreSQL": 10}
SEED = 7

Pair = tuple[Decision, Feedback]
Rows = tuple[dict[str, Any], dict[str, Any]]


@dataclass
class Sample:
    """What one side took, over all rounds.

    Attributes:
        latencies_s: Of every commit; empty where many share one.
        rates: Rows a second, one number a round.
    """

    latencies_s: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)

    def quantile_us(self, q: float) -> float:
        """Return a quantile of the latencies, in microseconds."""
        return 1e6 * float(np.quantile(self.latencies_s, q))

    @property
    def rate(self) -> float:
        """Rows a second in the median round."""
        return float(np.median(self.rates))


def invent(n: int, rng: np.random.Generator) -> list[Pair]:
    """Return decisions of the usual size, each with its feedback."""
    words = [f"w=word{i}" for i in range(400)]
    described = {arm: {f"arm={arm}": 1.0, f"kind={arm}": 1.0, "steps": 1.0} for arm in ARMS}
    pairs = []
    for i in range(n):
        features = dict.fromkeys(rng.choice(words, 12, replace=False).tolist(), 1.0)
        embedding = tuple(rng.standard_normal(32).tolist())
        p = rng.dirichlet(np.ones(len(ARMS)))
        context = Context(f"question {i}: " + " ".join(features), features, embedding, described)
        drawn = ARMS[int(rng.integers(len(ARMS)))]
        decision = Decision(
            f"d{i}", context, ARMS, tuple(p.tolist()), drawn, "vowpal", 3, decided_at=0.0, deadline=1e9
        )
        pairs.append((decision, Feedback(f"f{i}", decision.id, "recall", float(rng.random()), 1.0)))
    return pairs


def rows_of(pairs: Sequence[Pair]) -> list[Rows]:
    """Return the rows that the pairs become."""
    return [
        (decision_row(decision, seq, 1.0), feedback_row(said, seq + 1, 1.0, early=False))
        for seq, (decision, said) in zip(range(1, 2 * len(pairs), 2), pairs, strict=True)
    ]


def timed(commit: Callable[[Any], object], items: Sequence[Any], sample: Sample) -> None:
    """Commit the items one by one."""
    began = last = time.perf_counter()
    for item in items:
        commit(item)
        now = time.perf_counter()
        sample.latencies_s.append(now - last)
        last = now
    sample.rates.append(2 * len(items) / (last - began))


def bare(url: str, rows: Sequence[Rows], sample: Sample) -> None:
    """Commit finished rows with SQLAlchemy Core."""
    insert_decision, insert_feedback = sa.insert(tables.decisions), sa.insert(tables.feedback)
    with emptied(url) as store:
        engine = store.engine

        def commit(both: Rows) -> None:
            with engine.begin() as connection:
                connection.execute(insert_decision, both[0])
                connection.execute(insert_feedback, both[1])

        timed(commit, rows, sample)


def ours(url: str, pairs: Sequence[Pair], sample: Sample) -> None:
    """Commit facts through the store, a pair a commit."""
    with emptied(url) as store:
        timed(store.append, pairs, sample)


def grouped(url: str, pairs: Sequence[Pair], writers: int, sample: Sample) -> None:
    """Commit facts through group commit, each of several writers waiting for its own."""
    with emptied(url) as store:
        log = GroupCommit(store)

        async def write(share: Sequence[Pair]) -> None:
            for pair in share:
                await log.append(*pair)

        async def everything() -> float:
            began = time.perf_counter()
            await asyncio.gather(*(write(pairs[n::writers]) for n in range(writers)))
            return time.perf_counter() - began

        sample.rates.append(2 * len(pairs) / asyncio.run(everything()))
        log.close()


@contextmanager
def emptied(url: str) -> Iterator[Store]:
    """Lend a log without rows, in tables that are new."""
    remove(url)
    store = Store(url)
    store.append([])  # connected, and its statements compiled
    yield store
    store.close()


def remove(url: str) -> None:
    """Remove all tables of a log."""
    engine = open_database(url).engine
    tables.metadata.drop_all(engine)
    engine.dispose()


def report(name: str, core: Sample, pair: Sample, groups: dict[int, Sample], console: Console) -> None:
    """Print both tables of a database."""
    table = Table("a pair a commit", "p50 us", "p99 us", "rows/s", title=f"decision and feedback, {name}")
    for side, sample in (("SQLAlchemy Core, bare", core), ("Store.append", pair)):
        quantiles = (f"{sample.quantile_us(q):.0f}" for q in (0.5, 0.99))
        table.add_row(side, *quantiles, f"{sample.rate:,.0f}")
    ratios = (f"{pair.quantile_us(q) / core.quantile_us(q):.2f} x" for q in (0.5, 0.99))
    table.add_row(f"ratio (goal at most {GOAL_COMMIT} x)", *ratios, f"{pair.rate / core.rate:.2f} x")
    console.print(table)
    table = Table("group commit, writers", "rows/s", "x ours, a pair a commit", "x bare, a pair a commit")
    for writers, sample in groups.items():
        table.add_row(
            str(writers),
            f"{sample.rate:,.0f}",
            f"{sample.rate / pair.rate:.1f} x",
            f"{sample.rate / core.rate:.1f} x",
        )
    table.caption = f"goal at least {GOAL_GROUP[name]} x a pair a commit"
    console.print(table)


def measure(name: str, url: str, pairs: int, rounds: int, console: Console) -> None:
    """Compare the sides on one database, and print."""
    many = invent(pairs * MORE, np.random.default_rng(SEED))
    few = many[:pairs]
    rows = rows_of(few)
    core, pair, groups = Sample(), Sample(), {writers: Sample() for writers in WRITERS}
    for _ in range(rounds):
        bare(url, rows, core)
        ours(url, few, pair)
        for writers, sample in groups.items():
            grouped(url, few if writers == 1 else many, writers, sample)
    remove(url)
    report(name, core, pair, groups, console)


def check_empty(url: str) -> None:
    """Refuse a database with anything in it: it would be lost."""
    engine = open_database(url).engine
    if table_names := sa.inspect(engine).get_table_names():
        raise typer.BadParameter(f"the database is not empty; it has the tables {', '.join(table_names)}")
    engine.dispose()


class Choice(StrEnum):
    """Which databases are measured."""

    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"
    BOTH = "both"


def main(
    database: Annotated[Choice, typer.Option(help="Which of them.")] = Choice.BOTH,
    pairs: Annotated[int, typer.Option(min=10, help="Pairs that each side commits in a round.")] = 200,
    rounds: Annotated[int, typer.Option(min=1, help="Alternating rounds.")] = 10,
    folder: Annotated[
        Path | None, typer.Option(help="Where the file of SQLite goes; temporary when left out.")
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="An empty PostgreSQL; one is started when left out.")
    ] = None,
) -> None:
    """Compare and print."""
    console = Console()
    run = partial(measure, pairs=pairs, rounds=rounds)
    if database is not Choice.POSTGRESQL:
        with TemporaryDirectory(dir=folder) as name:
            run("SQLite", f"sqlite:///{Path(name) / 'log.db'}", console=console)
    if database is Choice.SQLITE:
        return
    if url is not None:
        check_empty(url)
        run("PostgreSQL", url, console=console)
        return
    try:
        from tests.postgres import PostgresError, running
    except ImportError as error:
        raise typer.BadParameter(
            f"no PostgreSQL can be started here ({error}): give one with --url"
        ) from None
    try:
        with running() as server:
            run("PostgreSQL", server.fresh(), console=console)
    except PostgresError as error:
        raise typer.BadParameter(f"{error}: give a PostgreSQL with --url") from None


if __name__ == "__main__":
    typer.run(main)
