"""How far the learner is behind a service that decides so many times a second, with feedback on all.

    python benchmarks/keep_up.py [--rates 500,1000,2000,4000] [--seconds 30] [--policy adaptive]

One process commits decisions, executions and feedback at a steady rate, as a replica does with many clients:
the decisions of a quarter of a second together, each with the features of `benchmarks/log.py`, and feedback a
second later. Another is the learner of a service, with its default interval. Twice a second, the age of the
oldest fact that the newest version has not learned is looked up.

A learner that keeps pace has a lag that does not grow: `growth` is the median of the last quarter less that
of the second. Where it grows, the rate is above the first bound, and `learned/s` says where that is.

The rates follow each other, each with an empty log; processor time is that of each process, of one core.
"""

import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from multiprocessing.synchronize import Event
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import psutil
import sqlalchemy as sa
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from armwise.agent.config import AppConfig, parse
from armwise.agent.hosts.learner import LearnerHost
from armwise.feedback.events import Cost, Execution, Status
from armwise.feedback.log import Fact, open_log
from armwise.feedback.log import tables as t
from armwise.feedback.training_log import lag
from benchmarks.log import ARMS, SEED, invent

TICK_S = 0.25
"""Decisions of so many seconds are committed together."""

LATE_S = 1.0
"""When the feedback on a decision comes."""

LOOK_S = 0.5
INVENTED = 2_000
"""Different decisions; they come again under other ids."""

WARM_UP_S = 5.0


@dataclass
class Run:
    """What was seen at a rate.

    Attributes:
        lags_s: Age of the oldest fact that is not learned, at each look.
        learned: Examples of the newest version, at each look.
        wrote_s: Processor time of the process that writes, of one core.
        learning_s: That of the learner, likewise.
        committed: Decisions a second.
    """

    lags_s: list[float] = field(default_factory=list)
    learned: list[int] = field(default_factory=list)
    wrote_s: float = 0.0
    learning_s: float = 0.0
    committed: float = 0.0


def configured(folder: Path, policy: str) -> AppConfig:
    """Return a service of four arms that do nothing."""
    params = {"vowpal": {"args": "--cb_explore_adf --epsilon 0.05"}}.get(policy, {})
    return parse(
        {
            "home": str(folder),
            "arms": {name: {"kind": "benchmarks.http_target:Nothing"} for name in ARMS},
            "llm": {"engine": "scripted", "default": ""},
            "policy": {"kind": policy, "params": params},
            "features": {"words": 12},
            "reward": {"metrics": {"recall": {"range": [0, 1]}}},
        }
    ).resolve_places()


def blocks(rate: int) -> Iterator[tuple[float, list[Fact]]]:
    """Yield the facts of each tick without end, and when they are due, in seconds since the first one."""
    pairs, n = invent(INVENTED, np.random.default_rng(SEED)), round(rate * TICK_S)
    waiting: list[list[Fact]] = []
    tick = 0
    while True:
        now, facts, later = time.time(), list[Fact](), list[Fact]()
        for number in range(tick * n, (tick + 1) * n):
            decision, feedback = pairs[number % INVENTED]
            name = f"d{number}"
            facts.append(replace(decision, id=name, decided_at=now, deadline=now + 600.0))
            facts.append(Execution(name, decision.drawn, Status.OK, Cost(steps=1), finished_at=now))
            later.append(replace(feedback, id=f"f{number}", decision_id=name, received_at=now))
        waiting.append(later)
        if len(waiting) > LATE_S / TICK_S:
            facts += waiting.pop(0)
        yield tick * TICK_S, facts
        tick += 1


def write(config: AppConfig, rate: int, ready: Event, count: Any) -> None:
    """Commit at a rate until the process ends; a commit that is late is followed by the next at once."""
    with closing(open_log(config.database_url, config.reward)) as store:
        ready.wait()
        began = time.monotonic()
        for due_s, facts in blocks(rate):
            time.sleep(max(0.0, began + due_s - time.monotonic()))
            store.append(facts)
            count.value += round(rate * TICK_S)


def learn(config: AppConfig, ready: Event) -> None:
    """Be the learner of a service until the process ends."""
    host = LearnerHost(config)
    ready.set()
    while True:
        time.sleep(1.0)
        host.check_health()


def measure(config: AppConfig, rate: int, seconds: float) -> Run:
    """Run both at a rate, and look at the lag."""
    spawn, run = multiprocessing.get_context("spawn"), Run()
    ready, count = spawn.Event(), spawn.Value("q", 0)
    with closing(open_log(config.database_url, config.reward)) as store:
        writer = spawn.Process(target=write, args=(config, rate, ready, count), daemon=True)
        learner = spawn.Process(target=learn, args=(config, ready), daemon=True)
        os.environ["OMP_NUM_THREADS"] = "1"  # as Ray does for a replica that is given a part of a processor
        for process in (writer, learner):
            process.start()
        try:
            ready.wait()
            time.sleep(WARM_UP_S)
            began, first, used = time.monotonic(), count.value, [_cpu_s(writer.pid), _cpu_s(learner.pid)]
            for _ in track(range(round(seconds / LOOK_S)), f"{rate:,} a second"):
                time.sleep(LOOK_S)
                with store.reading() as connection:
                    learned = connection.scalar(sa.select(sa.func.max(t.versions.c.examples_seq)))
                behind = lag.measure_lag(store, config.reward.join, learned)
                run.lags_s.append(behind.seconds(time.time()))
                run.learned.append(learned or 0)
            took = time.monotonic() - began
            run.committed = (count.value - first) / took
            run.wrote_s = (_cpu_s(writer.pid) - used[0]) / took
            run.learning_s = (_cpu_s(learner.pid) - used[1]) / took
        finally:
            for process in (writer, learner):
                process.terminate()
                process.join()
    return run


def _cpu_s(pid: int | None) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def row(rate: int, run: Run, seconds: float) -> Sequence[str]:
    """Return what a row of the table says."""
    quarter = max(1, len(run.lags_s) // 4)
    second, last = run.lags_s[quarter : 2 * quarter], run.lags_s[-quarter:]
    growth = float(np.median(last) - np.median(second))
    return (
        f"{rate:,}",
        f"{run.committed:,.0f}",
        f"{(run.learned[-1] - run.learned[0]) / (seconds - LOOK_S):,.0f}",
        f"{np.median(run.lags_s):.2f}",
        f"{max(run.lags_s):.2f}",
        f"{growth:+.2f}",
        f"{run.wrote_s:.2f}",
        f"{run.learning_s:.2f}",
    )


def main(
    rates: Annotated[
        str, typer.Option(help="Decisions a second, with commas between.")
    ] = "500,1000,2000,4000",
    seconds: Annotated[float, typer.Option(help="How long each rate is kept.")] = 30.0,
    policy: Annotated[str, typer.Option(help="Kind of the policy.")] = "adaptive",
    folder: Annotated[Path | None, typer.Option(help="Where the logs are; temporary when left out.")] = None,
) -> None:
    """Print the table."""
    table = Table("wanted/s", "committed/s", "learned/s", title=f"{policy}, {seconds:g} s a rate")
    for name in ("lag s, median", "largest", "growth", "cores that write", "cores that learn"):
        table.add_column(name, justify="right")
    for rate in map(int, rates.split(",")):
        with TemporaryDirectory(dir=folder) as place:
            table.add_row(*row(rate, measure(configured(Path(place), policy), rate, seconds), seconds))
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
