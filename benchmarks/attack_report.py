"""What honest clients see during an attack of attack.py, and the tables of the results."""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Self

import numpy as np
from rich.table import Table

from benchmarks.http_load import Answer, ask_once

PATIENCE_S = 5.0
"""How long an honest client waits."""

PAUSE_S = 0.1
"""Pause between two requests of an honest client."""

GOOD_IN_A_ROW = 10
"""So many answered requests of every route end an outage."""

OUTAGE = ("503", "refused", "reset", "closed")
"""What a client may see while a process of the service is replaced; 503 in the JSON envelope only."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One honest request.

    Attributes:
        at: When it began, by `time.perf_counter`.
        seconds: How long it took.
        label: Its status, or why there was no response.
        retry_after: Whether the response says when to come back.
    """

    at: float
    seconds: float
    label: str
    retry_after: bool = False

    @property
    def good(self) -> bool:
        """Whether it was answered as it should be."""
        return self.label.startswith("2")


@dataclass
class Honest:
    """Clients that ask one route each, over a new connection for each request, while the block runs.

    Attributes:
        address: Host and port of the service.
        wires: Route to request.
        pause_s: Seconds between two requests of a client.
        source: Address of this machine that they connect from; None for any.
        probes: Route to its requests so far.
    """

    address: tuple[str, int]
    wires: Mapping[str, bytes]
    pause_s: float = PAUSE_S
    source: str | None = None
    probes: dict[str, list[Probe]] = field(default_factory=dict)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def __aenter__(self) -> Self:
        self.probes = {route: [] for route in self.wires}
        self._tasks = [asyncio.create_task(self._client(route)) for route in self.wires]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _client(self, route: str) -> None:
        probes = self.probes[route]
        while True:
            began = time.perf_counter()
            answer = await ask_once(self.address, self.wires[route], PATIENCE_S, self.source)
            seconds = time.perf_counter() - began
            if isinstance(answer, Answer):
                probes.append(Probe(began, seconds, answer.label, "retry-after" in answer.headers))
            else:
                probes.append(Probe(began, seconds, answer))
            await asyncio.sleep(self.pause_s)

    def summary(self) -> dict[str, dict[str, Any]]:
        """Return for each route the quantiles of its latency in ms, and how often it got which status."""
        by_route = {}
        for route, probes in self.probes.items():
            if probes:
                p50, p99, most = np.quantile([1e3 * probe.seconds for probe in probes], [0.5, 0.99, 1.0])
                statuses = Counter(probe.label for probe in probes)
                by_route[route] = {"p50": p50, "p99": p99, "max": most, "statuses": dict(statuses)}
        return by_route

    def faults(self, routes: Sequence[str], p99_s: float) -> list[str]:
        """Return what speaks against these routes having been answered, within this time."""
        faults = []
        for route in routes:
            probes = self.probes[route]
            bad = Counter(probe.label for probe in probes if not probe.good)
            p99 = float(np.quantile([probe.seconds for probe in probes], 0.99)) if probes else np.inf
            words = [counted(bad), f"p99 {p99:.2f} s" if p99 > p99_s else ""]
            faults += [f"{route}: {', '.join(filter(None, words))}"] if any(words) else []
        return faults

    def back(self, began: float) -> bool:
        """Return whether the latest requests of every route began after this, and were answered."""
        latest = [probe for probes in self.probes.values() for probe in probes[-GOOD_IN_A_ROW:]]
        enough = len(latest) == GOOD_IN_A_ROW * len(self.probes)
        return enough and all(probe.good and probe.at > began for probe in latest)

    def outage(self, began: float, back_s: float) -> tuple[str, list[str]]:
        """Return what an outage looked like, and what is wrong with it.

        Args:
            began: When it began, by `time.perf_counter`.
            back_s: Seconds within which every route should have been answered again.
        """
        ends = {
            route: [(probe, probe.at + probe.seconds - began) for probe in some]
            for route, some in self.probes.items()
        }
        bad = [(probe, end) for some in ends.values() for probe, end in some if end > 0 and not probe.good]
        statuses = Counter(probe.label for probe, _ in bad)
        faults = [f"{count} x {label}" for label, count in statuses.items() if label not in OUTAGE]
        # a request that waited and was answered counts as well
        first = [
            min((end for probe, end in some if probe.good and probe.at > began), default=np.inf)
            for some in ends.values()
        ]
        seconds = max(*first, *(end for _, end in bad), 0.0)
        if seconds > back_s:
            faults.append(f"back after {seconds:.1f} s")
        return f"back after {seconds:.1f} s; {counted(statuses) or 'no failures'}", faults


def counted(labels: Mapping[str, int]) -> str:
    """Return counts in words, the most frequent first.

    >>> counted({"503": 2, "200": 40})
    '40 x 200, 2 x 503'
    """
    return ", ".join(
        f"{count} x {label}" for label, count in sorted(labels.items(), key=lambda pair: -pair[1])
    )


def lines(seen: Mapping[str, Mapping[str, Any]]) -> str:
    """Return what honest clients saw, a line for each route: p50, p99 and largest latency in ms, statuses."""
    return "\n".join(
        f"{route:<8} {row['p50']:4.0f} {row['p99']:5.0f} {row['max']:5.0f}  {counted(row['statuses'])}"
        for route, row in seen.items()
    )


def verdict(result: Mapping[str, Any]) -> str:
    """Return the verdict in words."""
    if result["skipped"]:
        return f"skipped: {result['skipped']}"
    return "[red]fails[/]: " + "; ".join(result["faults"]) if result["faults"] else "[green]ok[/]"


HONEST = "honest clients: p50 p99 max ms, statuses"


def table(results: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return one row for each attack."""
    shown = Table(show_lines=True)
    for column, ratio in {
        "attack": 3,
        HONEST: 5,
        "the attacker's connections": 5,
        "criterion": 3,
        "verdict": 4,
    }.items():
        shown.add_column(column, ratio=ratio)
    for name, result in results.items():
        did = f"[bold]{name}[/]\n{result['did']}"
        shown.add_row(did, lines(result["honest"]), result["got"], result["criterion"], verdict(result))
    return shown


def comparison(before: Mapping[str, Any], now: Mapping[str, Any]) -> Table:
    """Return one row for each attack that either run has, with both beside each other."""
    columns = [
        f"{when}: {what}" for what in ("p50 p99 max ms", "attacker", "verdict") for when in ("before", "now")
    ]
    shown = Table("attack", show_lines=True)
    for column, ratio in zip(columns, (5, 5, 4, 4, 3, 3), strict=True):
        shown.add_column(column, ratio=ratio)
    for name in dict.fromkeys([*before, *now]):
        runs = [run.get(name) for run in (before, now)]
        pairs = zip_longest(
            *([lines(run["honest"]), run["got"], verdict(run)] if run else [] for run in runs)
        )
        shown.add_row(name, *(cell or "" for pair in pairs for cell in pair))
    return shown
