"""What it takes to remember: a decision and its feedback, committed to SQLite.

    python benchmarks/log.py [--pairs 400] [--rounds 5] [--folder FOLDER]

Both sides write the same rows into the same tables under the same settings (WAL,
full synchronisation). The bare side is what SQLAlchemy Core takes when it is handed
finished rows: begin, insert, insert, commit. Ours starts from the facts, refuses
conflicts, and says what became of each item of feedback. Rounds alternate; `group
commit` has that many requests waiting for their own pair at any time.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import sqlalchemy as sa
import typer
from rich.console import Console
from rich.table import Table

from feedback import tables
from feedback.events import Context, Decision, Feedback
from feedback.store import Store, connect
from feedback.writer import GroupCommit

WRITERS = (1, 8, 32, 128)
MORE = 5
"""Times as many pairs where several share a commit, so that a round lasts long enough to be timed."""

ARMS = ("none", "bm25", "dense", "rrf")
GOAL_COMMIT, GOAL_GROUP = 1.5, 5.0
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
            f"d{i}", context, ARMS, tuple(p.tolist()), drawn, "vowpal", 3, decided_at=0.0, deadline=1e12
        )
        pairs.append((decision, Feedback(f"f{i}", decision.id, "recall", float(rng.random()), 1.0)))
    return pairs


def rows_of(pairs: Sequence[Pair]) -> list[Rows]:
    """Return the rows that the pairs become, read back from a log."""
    store = Store("sqlite://")
    store.append([fact for pair in pairs for fact in pair])
    with store.reading() as connection:
        both = [
            [
                {key: value for key, value in row.items() if key != "seq"}
                for row in connection.execute(sa.select(table).order_by(table.c.seq)).mappings()
            ]
            for table in (tables.decisions, tables.feedback)
        ]
    store.close()
    return list(zip(*both, strict=True))


def timed(commit: Callable[[Any], object], items: Sequence[Any], sample: Sample) -> None:
    """Commit the items one by one."""
    began = last = time.perf_counter()
    for item in items:
        commit(item)
        now = time.perf_counter()
        sample.latencies_s.append(now - last)
        last = now
    sample.rates.append(2 * len(items) / (last - began))


def bare(folder: Path, rows: Sequence[Rows], sample: Sample) -> None:
    """Commit finished rows with SQLAlchemy Core."""
    engine = connect(f"sqlite:///{folder / 'bare.db'}")
    tables.metadata.drop_all(engine)
    tables.metadata.create_all(engine)
    insert_decision, insert_feedback = sa.insert(tables.decisions), sa.insert(tables.feedback)

    def commit(both: Rows) -> None:
        with engine.begin() as connection:
            connection.execute(insert_decision, both[0])
            connection.execute(insert_feedback, both[1])

    timed(commit, rows, sample)
    engine.dispose()


def ours(folder: Path, pairs: Sequence[Pair], sample: Sample) -> None:
    """Commit facts through the store, a pair a commit."""
    store = emptied(folder / "ours.db")
    timed(store.append, pairs, sample)
    store.close()


def grouped(folder: Path, pairs: Sequence[Pair], writers: int, sample: Sample) -> None:
    """Commit facts through group commit, each of several writers waiting for its own."""
    store = emptied(folder / "grouped.db")
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
    store.close()


def emptied(path: Path) -> Store:
    """Return a store without rows."""
    store = Store(f"sqlite:///{path}")
    tables.metadata.drop_all(store.engine)
    tables.metadata.create_all(store.engine)
    return store


def report(core: Sample, pair: Sample, groups: dict[int, Sample], console: Console) -> None:
    """Print both tables."""
    table = Table("a pair a commit", "p50 us", "p99 us", "rows/s", title="decision and feedback, SQLite")
    for name, sample in (("SQLAlchemy Core, bare", core), ("Store.append", pair)):
        quantiles = (f"{sample.quantile_us(q):.0f}" for q in (0.5, 0.99))
        table.add_row(name, *quantiles, f"{sample.rate:,.0f}")
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
    table.caption = f"goal at least {GOAL_GROUP:g} x a pair a commit"
    console.print(table)


def main(
    pairs: Annotated[int, typer.Option(min=10, help="Pairs that each side commits in a round.")] = 400,
    rounds: Annotated[int, typer.Option(min=1, help="Alternating rounds.")] = 5,
    folder: Annotated[
        Path | None, typer.Option(help="Where the databases go; temporary when left out.")
    ] = None,
) -> None:
    """Compare and print."""
    many = invent(pairs * MORE, np.random.default_rng(SEED))
    few = many[:pairs]
    rows = rows_of(few)
    core, pair, groups = Sample(), Sample(), {writers: Sample() for writers in WRITERS}
    with TemporaryDirectory(dir=folder) as name:
        for _ in range(rounds):
            bare(Path(name), rows, core)
            ours(Path(name), few, pair)
            for writers, sample in groups.items():
                grouped(Path(name), few if writers == 1 else many, writers, sample)
    report(core, pair, groups, Console())


if __name__ == "__main__":
    typer.run(main)
