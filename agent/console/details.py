"""The details: each arm compared with what was served, raters, and the figures of a window of time."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from fastapi import Request, Response

from armwise.agent.api.errors import ApiError
from armwise.agent.api.middleware import AppReplica, RequestCaller, require
from armwise.agent.api.operations import policies
from armwise.agent.console.charts import band, draw_chart
from armwise.agent.console.live import cache_part, sight
from armwise.agent.console.overview import compare_arms, write_duration
from armwise.agent.console.page import page, pages
from armwise.agent.console.served_comparison import number_colours
from armwise.agent.lab.receipt import read_kept, write_sentence
from armwise.agent.serving import Replica
from armwise.feedback.ope import intervals
from armwise.feedback.reward import RewardRule
from armwise.feedback.training_log import raters, rollups

router = pages()

DAY = 86_400
"""Seconds."""

WINDOWS: Mapping[str, int | None] = {"1h": 3600, "24h": DAY, "7d": 7 * DAY, "30d": 30 * DAY, "all": None}
"""Seconds of each window; None: the entire log."""

SLOTS = 180
"""Most time slots in a chart."""

COARSER = 4
"""Slots that are merged into one in the chart of rewards, where single slots have too few decisions."""

NEWEST = 1000
"""Newest turns whose latencies are shown."""


@dataclass(frozen=True)
class Window:
    """A stretch of time, in seconds since the epoch, and its slots."""

    name: str
    since: int
    until: int
    step: int


@router.get("/details", dependencies=[require("decide", "read")])
async def details(
    request: Request, replica: AppReplica, caller: RequestCaller, window: str = "24h"
) -> Response:
    """Comparisons with each arm, and requests, rewards and costs in a window."""
    if window not in WINDOWS:
        raise ApiError(
            "invalid_value", f"window {window!r}: one of {', '.join(WINDOWS)} was expected", "window"
        )

    async def make() -> tuple[Response, bool]:
        figures = await asyncio.to_thread(_read, replica, window)
        comparison = await compare_arms(request, replica)
        receipt = await asyncio.to_thread(read_kept, replica.config)
        shows_raters = "read" in caller.scopes and caller.sees_all
        join = replica.config.reward.join
        counts = await asyncio.to_thread(raters.newest_counts, replica.store, join) if shows_raters else ()
        values = {
            **figures,
            "comparison": comparison,
            "receipt": receipt,
            "statement": "" if receipt is None else write_sentence(receipt),
            "policy": (await policies.policy(replica)).reply,
            "shed": sum(replica.telemetry.counts("armwise_shed").values()),
            "refused": {code: n for code, n in replica.telemetry.counts("armwise_failures").items() if n},
            "live": {name: info.enabled for name, info in replica.turns.arms.items()},
            "cost_weight": replica.config.reward.cost_weight,
            "wait": write_duration(replica.config.reward.wait_s),
            "raters": counts,
            "left_out": sum(count.left_out for count in counts),
            "rater_share": replica.config.reward.rater_share,
        }
        response = await asyncio.to_thread(
            page, request, "details.html", windows=WINDOWS, window=window, **values
        )
        return response, True

    return await cache_part(request, ("details", window, sight(caller)), make)


def _read(replica: Replica, name: str) -> dict[str, Any]:
    store, rule, now = replica.store, replica.config.reward, replica.clock()
    window = choose_window(name, now, rollups.first_start(store))
    rows = rollups.read(store, window.since, window.until, window.step)
    arms = number_colours(replica.store)
    return {
        "read": rollups.progress(store, rule),
        "since": window.since,
        "total": figures(rows, rule),
        "arms": by_arm(rows, rule),
        "elsewhere": _elsewhere(replica, name, now),
        "latency": latencies(rollups.newest_seconds(store, NEWEST)),
        "charts": charts(rows, window, rule),
        "colours": arms,
    }


def _elsewhere(replica: Replica, name: str, now: float) -> int | None:
    """Return the number of decisions of other systems in a window; None: the tap is off."""
    if replica.config.tap is None:
        return None
    length = WINDOWS[name]
    return rollups.count_decided_elsewhere(replica.store, 0.0 if length is None else now - length)


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


def figures(some: rollups.Sums, rule: RewardRule) -> dict[str, Any]:
    """Return counts and means of some rows of a window.

    Args:
        some: The rows of an arm, or all rows.
        rule: Prices of costs, and the range of rewards.
    """
    total = some.total()
    finished, prices = total["finished"] or math.nan, rule.cost
    cost = (
        prices.steps * total["steps"] + prices.kilotokens * total["tokens"] / 1000 + prices.usd * total["usd"]
    )
    cost += prices.seconds * (total["retrieval_s"] + total["llm_s"])
    return {
        **total,
        "reward_mean": intervals.estimate_mean(
            total["rewarded"], total["reward"], total["reward2"], rule.reward_range
        ),
        "cost_mean": cost / finished,
        "retrieval_ms": 1000 * total["retrieval_s"] / finished,
        "llm_ms": 1000 * total["llm_s"] / (total["answers"] or math.nan),
    }


def by_arm(rows: rollups.Sums, rule: RewardRule) -> dict[str, dict[str, Any]]:
    """Return the figures of each arm, by name."""
    return {arm: figures(rows.where(rows.arm == arm), rule) for arm in sorted(set(rows.arm))}


def latencies(seconds: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Return the median, 95th and 99th percentile of each stage with turns, in milliseconds."""
    return {
        stage: (1000 * np.quantile(values, (0.5, 0.95, 0.99))).tolist()
        for stage, values in seconds.items()
        if values
    }


def charts(rows: rollups.Sums, window: Window, rule: RewardRule) -> dict[str, str]:
    """Return the charts of a window, as JSON for `console.js`."""
    n = (window.until - window.since + window.step - 1) // window.step
    total = np.bincount(rows.slot, rows.columns["decisions"], n)
    stretches = rows.slot // COARSER
    earned = {
        stretch: mean
        for stretch in np.unique(stretches).tolist()
        if (mean := figures(rows.where(stretches == stretch), rule)["reward_mean"])
    }
    middle, whole = window.since + window.step * COARSER / 2, [window.since, window.until]
    per_minute = (total * 60 / window.step).round(3).tolist()
    return {
        "requests": draw_chart(
            [window.since + window.step * (i + 0.5) for i in range(n)],
            [{"label": "requests", "colour": "--ink", "values": per_minute}],
            unit="per minute",
            range=whole,
        ),
        "rewards": draw_chart(
            [middle + window.step * COARSER * slot for slot in earned],
            [band("what was served", "--ink", earned.values())],
            unit="reward",
            range=whole,
        ),
    }
