"""What it takes to evaluate policies on a log of a million decisions, beside connectorx, which only reads it.

    python benchmarks/replay.py FOLDER [--rows 1000000] [--postgres-rows 200000] [--rounds 3]

The log is made once and kept in FOLDER: decisions with the features of a real service, executed, judged by
two metrics, and joined by the learner's own join. connectorx reads the columns that an evaluation needs, of
the same rows in the same order, into Arrow tables. Ours reads them into the arrays of a `Log`, rewards
worked out, distributions checked; then six estimators give a value and a difference to what was served,
each with an interval. Every measurement is made in a process of its own; sides alternate, and the shortest
time of each counts, as other processes only ever add to it. Times are the processor's for SQLite, which works
within the process, and those on the clock for PostgreSQL, which is the one that the tests start.
"""

import resource
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter, process_time
from typing import Annotated, Any

import numpy as np
import sqlalchemy as sa
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from armwise.feedback.dataset import Log
from armwise.feedback.decisions import EVERYTHING
from armwise.feedback.events import Context, Cost, Decision, Execution, Feedback, Status
from armwise.feedback.log import Fact, Store
from armwise.feedback.ope import evaluate
from armwise.feedback.reward import Metric, RewardRule
from armwise.feedback.sources import CHUNK, read_learned
from armwise.feedback.training_log import Joiner, take_epoch

sys.path.insert(0, str(Path(__file__).parents[1]))

ARMS = ("none", "bm25", "dense", "rrf")
RULE = RewardRule(
    correction_time="PT0S",
    metrics={"right": Metric(type="boolean"), "overlap": Metric()},
    cost_weight=0.05,
    complete="all",
)
FOUR = ("ips", "snips", "dm", "dr")
NOW, GAP_S = 1_790_000_000.0, 20.0
COMMIT = 2000
"""Turns that are committed together."""

SEED = 5

QUERY = """
SELECT x.seq, x.metrics, e.status, e.steps, d.question_digest, d.arms, d.probabilities, d.drawn, d.propensity,
       d.policy, d.version, d.mode, d.decided_at
FROM examples x
JOIN decisions d ON d.id = x.decision_id
JOIN executions e ON e.decision_id = x.decision_id
WHERE x."join" = '{join}' AND x.seq <= {rows}
ORDER BY x.seq
"""

Measured = tuple[dict[str, float], float]
"""Seconds that each part took, and the largest resident memory of the process, in bytes."""


def turns(n: int) -> Iterator[list[Fact]]:
    """Yield the facts of turns: a quarter as many questions, which say and mean one of 2,000 things."""
    rng = np.random.default_rng(SEED)
    words = [f"w=word{i}" for i in range(400)]
    arms = {arm: {f"arm={arm}": 1.0, "steps": float(j)} for j, arm in enumerate(ARMS)}
    question_features = [
        (
            dict.fromkeys(rng.choice(words, 12, replace=False).tolist(), 1.0),
            tuple(rng.standard_normal(32).tolist()),
        )
        for _ in range(2000)
    ]
    for number in range(n):
        question = int(rng.integers(max(1, n // 4)))
        features, embedding = question_features[question % len(question_features)]
        context = Context(f"question {question}: {' '.join(features)}", features, embedding, arms)
        p = 0.02 + 0.92 * rng.dirichlet(np.ones(len(ARMS)))
        p /= p.sum()
        drawn = int(rng.choice(len(ARMS), p=p))
        name, at = rng.bytes(16).hex(), NOW - GAP_S * (n - number)
        overlap, right = float(rng.random()), float(rng.random() < 0.3 + 0.1 * drawn)
        cost = Cost(drawn, 400 + number % 100, 60, 0.02 + 0.02 * overlap, 0.4)
        yield [
            Decision(
                name, context, ARMS, tuple(p.tolist()), ARMS[drawn], "vowpal", 1 + number // 5000,
                decided_at=at, deadline=at + RULE.wait_s, steps={"floor": {"least": 0.02}},
            ),
            Execution(name, ARMS[drawn], Status.OK, cost, ("p1", "p2", "p3"), "words " * 30, "", at + 0.5),
            Feedback(f"{name}:r", name, "right", right, at + 1.0),
            Feedback(f"{name}:o", name, "overlap", overlap, at + 1.0),
        ]  # fmt: skip


def fabricate(url: str, n: int, console: Console) -> None:
    """Write a log as a service does, and join it as its learner does."""
    with closing(Store(url, RULE.join, clock=lambda: NOW)) as store:
        facts: list[Fact] = []
        for number, turn in enumerate(track(turns(n), "writing turns", n, console=console), start=1):
            facts += turn
            if number % COMMIT == 0 or number == n:
                store.append(facts)
                facts = []
        joiner = Joiner(store, RULE, take_epoch(store, "benchmark", NOW))
        with console.status("joining"):
            joiner.advance(NOW)
            while joiner.left:
                joiner.advance(NOW)


def theirs(url: str, rows: int) -> Measured:
    """Let connectorx read the rows."""
    import connectorx

    clock = _clock(url)
    parsed = sa.make_url(url)
    if parsed.drivername.startswith("postgresql"):
        folder = str(parsed.query["host"]).replace("/", "%2F")
        url = f"postgresql://{parsed.username}@localhost/{parsed.database}?host={folder}"
    else:
        url = f"sqlite://{parsed.database}"
    start = clock()
    table = connectorx.read_sql(url, QUERY.format(join=RULE.join, rows=rows), return_type="arrow")
    read_s = clock() - start
    assert table.num_rows == rows
    return {"read": read_s}, _peak()


def ours(url: str, rows: int) -> Measured:
    """Read the rows into a log, and evaluate a target by six estimators."""
    clock = _clock(url)
    with closing(Store(url, RULE.join)) as store:
        start = clock()
        ranges = ((after, min(after + CHUNK, rows)) for after in range(0, rows, CHUNK))
        log = Log.from_decisions(read_learned(store, RULE, EVERYTHING, *each) for each in ranges)
        read_s = clock() - start
    assert len(log) == rows
    targets = {"target": target(log)}
    took = {"read": read_s}
    for kind in ("normal", "bootstrap"):
        start = clock()
        evaluate(
            log,
            targets,
            np.random.default_rng(SEED),
            estimators=FOUR,
            interval=kind,
            reward_model="means",
            reward_range=RULE.clip,
            resamples=100,
        )
        took[kind] = clock() - start
    return took, _peak()


def target(log: Log) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return a policy that prefers another arm on each question."""
    p = np.full((len(log), len(log.arms)), 0.02)
    p[np.arange(len(log)), log.questions % len(log.arms)] = 1.0 - 0.02 * (len(log.arms) - 1)
    return p


def _clock(url: str) -> Callable[[], float]:
    return process_time if url.startswith("sqlite") else perf_counter


def _peak() -> float:
    return 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def measured(side: Callable[[str, int], Measured], url: str, rows: int) -> Measured:
    """Measure a side in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(side, url, rows).result()


def compare(name: str, url: str, sizes: list[int], rounds: int, console: Console) -> None:
    """Print what both sides take for the first so many rows of a log."""
    table = Table(title=f"{name}: seconds, and peak memory")
    for column in (
        "rows",
        "connectorx",
        "ours, read",
        "ratio",
        "+ six estimators",
        "+ 100 resamples",
        "goal",
    ):
        table.add_column(column, justify="right")
    table.add_column("memory, theirs", justify="right")
    table.add_column("ours", justify="right")
    for rows in sizes:
        pairs = [
            (measured(theirs, url, rows), measured(ours, url, rows))
            for _ in track(range(rounds), f"{name}, {rows:,} rows", console=console)
        ]
        read_s = min(seconds["read"] for (seconds, _), _ in pairs)
        took = {
            part: min(seconds[part] for _, (seconds, _) in pairs) for part in ("read", "normal", "bootstrap")
        }
        table.add_row(
            f"{rows:,}",
            f"{read_s:.2f}",
            f"{took['read']:.2f}",
            f"{took['read'] / read_s:.2f}",
            f"{took['read'] + took['normal']:.2f}",
            f"{took['read'] + took['bootstrap']:.2f}",
            f"{1.5 * read_s + 1.0:.2f}",
            f"{max(peak for (_, peak), _ in pairs) / 1e6:.0f} MB",
            f"{max(peak for _, (_, peak) in pairs) / 1e6:.0f} MB",
        )
    console.print(table)


def main(
    folder: Annotated[Path, typer.Argument(help="Where the log is kept.")],
    rows: Annotated[int, typer.Option(min=4000, help="Decisions in the log.")] = 1_000_000,
    postgres_rows: Annotated[int, typer.Option(help="The same in PostgreSQL; 0 for none.")] = 200_000,
    rounds: Annotated[int, typer.Option(min=1, help="How often each side is measured.")] = 3,
) -> None:
    """Print a table for each database."""
    console = Console(width=130)
    path = folder / f"replay-{rows}.db"
    if not path.exists():
        unfinished = path.with_suffix(".unfinished")
        unfinished.unlink(missing_ok=True)
        fabricate(f"sqlite:///{unfinished}", rows, console)
        unfinished.rename(path)
    compare("SQLite", f"sqlite:///{path}", [rows // 4, rows // 2, rows], rounds, console)
    if postgres_rows:
        from tests.postgres import running

        with running() as server:
            url = server.fresh()
            fabricate(url, postgres_rows, console)
            with server.connect() as connection:
                connection.execute("ANALYZE")
            compare("PostgreSQL", url, [postgres_rows], rounds, console)


if __name__ == "__main__":
    typer.run(main)
