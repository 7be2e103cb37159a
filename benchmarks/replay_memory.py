"""How much memory and time a replay takes as its log grows: the largest resident memory of a process each.

    python benchmarks/replay_memory.py FOLDER [--rows 100000 --rows 1000000] [--policy NAME]
    python benchmarks/replay_memory.py FOLDER --rows 10000000 --policy 'policy:{kind: uniform}'

Logs are made once and kept in FOLDER: decisions of four arms with a question, its features, a distribution
and a judged answer, written straight into the tables of an SQLite log. A quarter as many questions as
decisions are asked. Without `--policy`, candidates are those of `armwise replay`.
"""

import resource
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import orjson
import typer
import yaml
from rich.console import Console
from rich.progress import Progress, track
from rich.table import Table

from armwise.agent.config import load
from armwise.agent.evaluation import EvaluationRequest, replay
from armwise.feedback.log import Store
from armwise.feedback.reward import RewardRule
from armwise.feedback.sources import LogSource

ARMS = ("none", "bm25", "dense", "rrf")
REWARD: dict[str, Any] = {
    "metrics": {"right": {}},
    "correction_time": "PT0S",
    "cost_weight": 0.0,
    "clip": [0, 1],
}
RULE = RewardRule.model_validate(REWARD)
BEGIN = 1_700_000_000.0
BLOCK = 10_000
POOL = 1000
"""Different distributions, and sets of features."""


def fabricate(path: Path, n: int, console: Console) -> None:
    """Write a log of so many settled decisions, as its service and its learner would have left it."""
    Store(f"sqlite:///{path}", RULE.join).close()
    with closing(sqlite3.connect(path)) as database:
        database.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF")
        blocks = track(_blocks(n), f"writing {n:,} decisions", -(-n // BLOCK), console=console)
        for rows in blocks:
            for table, values in rows.items():
                marks = ", ".join("?" * len(values[0]))
                database.executemany(f"INSERT INTO {table} VALUES ({marks})", values)
        end = BEGIN + n + RULE.wait_s + 60.0
        database.execute("INSERT INTO ticks VALUES (?, ?)", (3 * n + 1, end))
        database.execute("UPDATE log SET seq = ?, at = ?", (3 * n + 1, end))
        read = (RULE.join, 3 * n + 1, end, n, "[]", 0, "0" * 64)
        database.execute("INSERT INTO progress VALUES (?, ?, ?, ?, ?, ?, ?)", read)
        database.commit()


def _blocks(n: int) -> Iterator[dict[str, list[tuple[Any, ...]]]]:
    """Yield the rows of each table, for some decisions at a time."""
    rng = np.random.default_rng(5)
    arms, words = orjson.dumps(ARMS).decode(), [f"w=word{i}" for i in range(400)]
    p = 0.02 + 0.92 * rng.dirichlet(np.ones(len(ARMS)), POOL)
    p /= p.sum(axis=1, keepdims=True)
    shares = [orjson.dumps(one).decode() for one in p.tolist()]
    some = [dict.fromkeys(rng.choice(words, 6, replace=False).tolist(), 1.0) for _ in range(POOL)]
    features = [orjson.dumps({"sparse": one, "embedding": [], "arms": {}}).decode() for one in some]
    for begin in range(0, n, BLOCK):
        rows: dict[str, list[tuple[Any, ...]]]
        rows = {name: [] for name in ("decisions", "texts", "executions", "examples")}
        size = min(BLOCK, n - begin)
        pool, question = rng.integers(POOL, size=size), rng.integers(max(1, n // 4), size=size)
        drawn = (rng.random(size)[:, np.newaxis] > p[pool].cumsum(axis=1)[:, :-1]).sum(axis=1)
        right = (rng.random(size) < 0.3 + 0.1 * drawn).astype(float)
        columns = (column.tolist() for column in (pool, question, drawn, p[pool, drawn], right))
        for number, (one, asked, arm, propensity, judged) in enumerate(zip(*columns, strict=True), begin):
            seq, name, at = 3 * number + 1, f"d{number:09}", BEGIN + number
            about = f"question {asked}: {' '.join(some[asked % POOL])}"
            rows["decisions"].append((
                *(seq, name, at, at + RULE.wait_s, at, "explore", "linucb", 1 + number // 5000, ARMS[arm]),
                *(propensity, 0, None, "", f"{asked:016x}", arms, shares[one], features[asked % POOL]),
                *('{"floor":{"least":0.02}}', None, None, None, None, None),
            ))  # fmt: skip
            document = orjson.dumps({"question": about, "names": []}).decode()
            rows["texts"].append((seq, document, "0" * 24))
            rows["executions"].append((
                *(seq + 1, name, ARMS[arm], "ok", 1, 400, 60, 0.02, 0.4, 0.001, 1, 1, at + 0.5, None, 0),
                *("null", "", None),
            ))  # fmt: skip
            metrics = orjson.dumps({"right": judged}).decode()
            rows["examples"].append((RULE.join, number + 1, name, metrics, seq + 2, None, None, None))
        yield rows


def measure(path: Path, request: dict[str, Any], *, shown: bool) -> tuple[float, float, int]:
    """Replay a log; return the bytes that it took at most, its seconds, and its rows."""
    document = {"log_url": f"sqlite:///{path}", "home": str(path.parent), "reward": REWARD}
    file = path.with_suffix(".yaml")
    arguments = {**document, "arms": {arm: {"kind": "none"} for arm in ARMS}, "llm": {"engine": "scripted"}}
    file.write_text(yaml.safe_dump({"applications": [{"args": arguments}]}))
    config, start = load(file, ["router"]), time.perf_counter()
    with closing(Store(config.database_url, config.reward.join)) as store, Progress(disable=not shown) as bar:
        task = bar.add_task("", total=None)

        def on_progress(step: str, done: int, total: int | None) -> None:
            bar.update(task, description=step, completed=done, total=total)

        parsed = EvaluationRequest.model_validate(request)
        found = replay(config, parsed, LogSource(store, config.reward), store, on_progress)
    peak = 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak, time.perf_counter() - start, found["rows"]


def main(
    folder: Annotated[Path, typer.Argument(help="Where the logs are kept.")],
    rows: Annotated[list[int], typer.Option(min=1000, help="Decisions in a log; repeatable.")] = [100_000],  # noqa: B006
    policy: Annotated[list[str], typer.Option(help="A candidate, as for replay.")] = [],  # noqa: B006
    estimator: Annotated[list[str], typer.Option(help="An estimator.")] = ["ips", "snips"],  # noqa: B006
    reward_model: Annotated[str, typer.Option(help="For estimators that predict.")] = "means",
    gate: Annotated[bool, typer.Option(help="Whether the gate judges.")] = False,
) -> None:
    """Print a table with a row for each log."""
    console = Console(width=110)
    table = Table(title=f"{', '.join(policy) or 'default candidates'}, {', '.join(estimator)}")
    for column in ("decisions", "seconds", "peak, MiB", "more bytes a decision"):
        table.add_column(column, justify="right")
    request = {
        "candidates": policy, "estimators": estimator, "reward_model": reward_model, "gate": gate
    }  # fmt: skip
    before: tuple[float, int] | None = None
    for n in sorted(rows):
        path = folder / f"replay-memory-{n}.db"
        if not path.exists():
            unfinished = path.with_suffix(".unfinished")
            unfinished.unlink(missing_ok=True)
            fabricate(unfinished, n, console)
            unfinished.rename(path)
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            peak, took_s, found = pool.submit(measure, path, request, shown=console.is_terminal).result()
        more = "" if before is None else f"{(peak - before[0]) / (found - before[1]):.0f}"
        table.add_row(f"{found:,}", f"{took_s:.1f}", f"{peak / 2**20:,.0f}", more)
        before = peak, found
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
