"""The overview: requests, rewards and costs in a window, by arm, compared with drawing at random."""

import asyncio
import math
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import Request, Response
from fastapi.responses import HTMLResponse

from armwise.agent.api.errors import ApiError
from armwise.agent.api.middleware import AppReplica, RequestCaller, require
from armwise.agent.api.operations import policies
from armwise.agent.console import learning
from armwise.agent.console.charts import band, draw_chart, draw_levels
from armwise.agent.console.learning import DAY
from armwise.agent.console.page import HEADERS, find_address, page, pages
from armwise.agent.console.served_comparison import COLOURS, least_floor, number_colours, weighted
from armwise.agent.lab.receipt import read_kept, write_sentence
from armwise.agent.run_folder import RUN_FOLDER, read_question
from armwise.agent.serving import Replica
from armwise.feedback.ope import intervals
from armwise.feedback.reward import RewardRule
from armwise.feedback.training_log import rollups

router = pages()

WINDOWS: Mapping[str, int | None] = {"1h": 3600, "24h": DAY, "7d": 7 * DAY, "30d": 30 * DAY, "all": None}
"""Seconds of each window; None: the entire log."""

SLOTS = 180
"""Most time slots in a chart."""

COARSER = 4
"""Slots that are merged into one in the chart of rewards, where single slots have too few decisions."""

KEPT_S = 4.0
"""Seconds for which the live part is cached, for viewers of the same window with the same permissions."""

KEPT_TIMES = 1000
"""Cache duration as a multiple of the time to make it, if that is longer: at most 1/1000 of a replica."""

WEIGHTED = ("w", "wr", "w2", "w2r", "w2r2")
"""Sums from which the reward of always using an arm is estimated."""

NEWEST = 1000
"""Newest turns whose latencies are shown."""


@dataclass(frozen=True)
class Window:
    """A stretch of time, in seconds since the epoch, and its slots."""

    name: str
    since: int
    until: int
    step: int


@router.get("", dependencies=[require("decide", "read")])
async def overview(
    request: Request,
    replica: AppReplica,
    caller: RequestCaller,
    window: str = "24h",
) -> Response:
    """Requests, rewards and costs in a window."""
    if window not in WINDOWS:
        raise ApiError(
            "invalid_value", f"window {window!r}: one of {', '.join(WINDOWS)} was expected", "window"
        )
    kept = _kept(request)
    sees = caller.prefix, caller.sees_all, "read" in caller.scopes
    key = window, request.scope.get("root_path", ""), sees
    if "hx-request" in request.headers and key in kept and kept[key][0] > time.monotonic():
        return HTMLResponse(kept[key][1], headers=HEADERS)
    began = time.monotonic()
    active = (await policies.policy(replica)).reply
    window_figures = await asyncio.to_thread(_read, replica, window)
    learned = await asyncio.to_thread(learning.panel, replica, caller)
    receipt = await asyncio.to_thread(read_kept, replica.config)
    refused = {code: n for code, n in replica.telemetry.counts("armwise_failures").items() if n}
    shed = sum(replica.telemetry.counts("armwise_shed").values())
    live = {name: info.enabled for name, info in replica.turns.arms.items()}
    values = {
        **window_figures,
        "learning": learned,
        "receipt": receipt,
        "statement": "" if receipt is None else write_sentence(receipt),
        "policy": active,
        "shed": shed,
        "refused": refused,
        "live": live,
        "cost_weight": replica.config.reward.cost_weight,
    }
    values["command"] = write_command(request)
    shown = await asyncio.to_thread(page, request, "overview.html", windows=WINDOWS, window=window, **values)
    # an empty log is read at once; its page has an address that each viewer names for itself
    if "hx-request" in request.headers and learned["whole"].decisions:
        ended = time.monotonic()
        kept[key] = ended + max(KEPT_S, KEPT_TIMES * (ended - began)), shown.body
    return shown


def write_command(request: Request) -> str:
    """Return the command for a shell that asks the first question, at the address that the viewer has."""
    folder = os.environ.get(RUN_FOLDER)
    question = read_question(None if folder is None else Path(folder))
    return shlex.join(["armwise", "ask", question, "--url", find_address(request)])


Sight = tuple[str, bool, bool]
"""Permissions of a caller: the prefix of visible ids, whether all are visible, and whether it may read."""

Watched = tuple[str, str, Sight]
"""A window, a prefix of paths, and the permissions of a caller."""


def _kept(request: Request) -> dict[Watched, tuple[float, bytes | memoryview]]:
    """Return the cached live parts, each with its expiry."""
    state = request.app.state
    if not hasattr(state, "overviews"):
        state.overviews = {}
    overviews: dict[Watched, tuple[float, bytes | memoryview]] = state.overviews
    return overviews


def _read(replica: Replica, name: str) -> dict[str, Any]:
    store, rule, now = replica.store, replica.config.reward, replica.clock()
    floor = least_floor(replica.store, replica.config)
    window = choose_window(name, now, rollups.first_start(store))
    rows = rollups.read(store, window.since, window.until, window.step)
    arms = number_colours(replica.store)
    return {
        "read": rollups.progress(store, rule),
        "since": window.since,
        "total": figures(rows, 0, rule, floor),
        "arms": by_arm(rows, rule, floor),
        "baseline": at_random(rows, rule, floor),
        "elsewhere": _elsewhere(replica, name, now),
        "latency": latencies(rollups.newest_seconds(store, NEWEST)),
        "charts": charts(rows, window, arms, rule, floor),
        "colours": arms,
    }


def _elsewhere(replica: Replica, name: str, now: float) -> int | None:
    """Return the number of decisions of other systems in a window; None: the tap is off."""
    if replica.config.tap is None:
        return None
    length = WINDOWS[name]
    return rollups.decided_elsewhere(replica.store, 0.0 if length is None else now - length)


def choose_window(name: str, now: float, first: int | None) -> Window:
    """Return a window that ends now.

    Args:
        name: Name from `WINDOWS`.
        now: Seconds since the epoch.
        first: Start of the first minute or hour with a decision, the earliest start of the window; None: the
            log is empty.

    >>> choose_window("24h", 1_000_000.0, None).step, choose_window("all", 36_000_000.0, 0).step
    (480, 201600)
    >>> choose_window("7d", 1_000_000.0, 999_600).since, choose_window("7d", 1_000_000.0, 999_600).step
    (999600, 60)
    """
    length, begin = WINDOWS[name], -math.inf if first is None else float(first)
    since = max(begin, -math.inf if length is None else now - length)
    if math.isinf(since):
        since = now
    unit = rollups.MINUTE if now - since < DAY + 1 else rollups.HOUR
    step = max(1, math.ceil((now - since) / unit / SLOTS)) * unit
    return Window(name, int(since // step) * step, int(now) + 1, step)


def figures(some: rollups.Sums, n: float, rule: RewardRule, floor: float) -> dict[str, Any]:
    """Return counts, means and the estimates of reward of some rows of a window.

    Args:
        some: The rows of an arm, or all rows.
        n: Number of rewards in the window.
        rule: Prices of costs, and the range of rewards.
        floor: Least probability of an eligible arm.
    """
    total = some.total()
    finished, rewarded, prices = total["finished"] or math.nan, total["rewarded"], rule.cost
    cost = (
        prices.steps * total["steps"] + prices.kilotokens * total["tokens"] / 1000 + prices.usd * total["usd"]
    )
    cost += prices.seconds * (total["retrieval_s"] + total["llm_s"])
    squares = rewarded, total["reward"], total["reward2"]
    return {
        **total,
        "reward_mean": intervals.from_sums(
            int(rewarded), rewarded, total["reward"], *squares, reach=1.0, rewards=rule.reward_range
        ),
        "alone": intervals.from_sums(
            int(n), *(total[name] for name in WEIGHTED), reach=1.0 / floor, rewards=rule.reward_range
        ),
        "cost_mean": cost / finished,
        "retrieval_ms": 1000 * total["retrieval_s"] / finished,
        "llm_ms": 1000 * total["llm_s"] / (total["answers"] or math.nan),
    }


def by_arm(rows: rollups.Sums, rule: RewardRule, floor: float) -> dict[str, dict[str, Any]]:
    """Return the figures of each arm, by name."""
    n = rows.columns["rewarded"].sum()
    return {arm: figures(rows.where(rows.arm == arm), n, rule, floor) for arm in sorted(set(rows.arm))}


def at_random(rows: rollups.Sums, rule: RewardRule, floor: float) -> tuple[float, intervals.Interval] | None:
    """Return the SNIPS estimate of drawing eligible arms uniformly, with its interval, if there is one."""
    alike = np.divide(1.0, rows.n_arms, out=np.zeros(len(rows.n_arms)), where=rows.n_arms > 0)
    reach = float(alike.max(initial=0.0)) / floor
    return weighted(rows, alike).estimate(reach=reach, rewards=rule.reward_range)


def latencies(seconds: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Return the median, 95th and 99th percentile of each stage with turns, in milliseconds."""
    return {
        stage: (1000 * np.quantile(values, (0.5, 0.95, 0.99))).tolist()
        for stage, values in seconds.items()
        if values
    }


def charts(
    rows: rollups.Sums, window: Window, arms: Mapping[str, int], rule: RewardRule, floor: float
) -> dict[str, str]:
    """Return the charts of a window, as JSON for `console.js`."""
    n = (window.until - window.since + window.step - 1) // window.step
    counts = {
        arm: np.bincount(rows.slot[chosen], rows.columns["explored"][chosen], n)
        for arm in sorted(set(rows.arm), key=lambda name: arms.get(name, COLOURS))
        for chosen in [rows.arm == arm]
    }
    explored = sum(counts.values(), np.zeros(n))
    total = np.bincount(rows.slot, rows.columns["decisions"], n)
    slots = np.flatnonzero(explored)
    shares = [
        {
            "label": arm,
            "colour": f"--c{arms.get(arm, COLOURS - 1)}",
            "values": (100 * count[slots] / explored[slots]).round(2).tolist(),
        }
        for arm, count in counts.items()
    ]
    stretches = rows.slot // COARSER
    earned = {
        stretch: mean
        for stretch in np.unique(stretches).tolist()
        if (mean := figures(rows.where(stretches == stretch), 0, rule, floor)["reward_mean"])
    }
    middle = window.since + window.step * COARSER / 2
    whole = [window.since, window.until]
    return {
        "shares": draw_levels(
            [(window.since + window.step * i, window.since + window.step * (i + 1)) for i in slots.tolist()],
            shares,
            unit="%",
            stacked=True,
            range=whole,
        ),
        "requests": draw_chart(
            [window.since + window.step * (i + 0.5) for i in range(n)],
            [
                {
                    "label": "requests",
                    "colour": "--ink",
                    "values": (total * 60 / window.step).round(3).tolist(),
                }
            ],
            unit="a minute",
            range=whole,
        ),
        "rewards": draw_chart(
            [middle + window.step * COARSER * slot for slot in earned],
            [band("what was served", "--ink", earned.values())],
            unit="reward",
            range=whole,
        ),
    }
