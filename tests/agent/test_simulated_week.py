"""A week of clicks, of stars and of rare events at a service each: all that it says agrees with the truth.

Time is the service's own and is moved; the week ended the day before yesterday. All else is as it runs:
requests and feedback over its API, a learner woken every hour, and the console and the verbs over what
was logged.
"""

import asyncio
import heapq
import json
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from armwise.agent.cli.main import app
from armwise.feedback.clock import SteadyClock
from tests.agent.cli.test_cli import said
from tests.agent.fakes import CONFIG, Service

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(600)]

DAY, DAYS = 86_400.0, 7

KINDS, ARMS, FLOOR = ("who", "how"), ("none", "bm25"), 0.02


@dataclass(frozen=True)
class Traffic:
    """What is asked of a service, and what its users do.

    Attributes:
        reward: The rule.
        metric: What they report.
        mean: Mean reward of each arm, by kind of question.
        value: Draws what a user does of the given mean reward; None for nothing.
        delay_s: Mean seconds until it is reported, at most five times as many.
        every_s: Mean seconds between two questions.
    """

    reward: dict[str, Any]
    metric: str
    mean: dict[str, dict[str, float]]
    value: Callable[[np.random.Generator, float], float | bool | None]
    delay_s: float
    every_s: float = 480.0

    def truth(self, arm: str) -> float:
        """Return what an arm earns a question, on average over kinds."""
        return float(np.mean([self.mean[kind][arm] for kind in KINDS]))


def clicked(rng: np.random.Generator, mean: float) -> bool | None:
    """Return a click, or silence."""
    return True if rng.random() < mean else None


def stars(rng: np.random.Generator, mean: float) -> float | None:
    """Return one to five stars, by a third of the users; their mean is at the given part of the way."""
    return 1.0 + float(rng.binomial(4, mean)) if rng.random() < 1 / 3 else None


SERVICES = {
    "clicks": Traffic(
        {"metrics": {"click": {"type": "boolean"}}, "cost_weight": 0.0, "wait_time": "PT30M", "default": 0.0},
        "click",
        {"who": {"none": 0.35, "bm25": 0.2}, "how": {"none": 0.15, "bm25": 0.4}},
        clicked,
        120.0,
    ),
    "stars": Traffic(
        {"metrics": {"stars": {"range": [1, 5]}}, "cost_weight": 0.0, "wait_time": "PT6H"},
        "stars",
        {"who": {"none": 0.5, "bm25": 0.75}, "how": {"none": 0.5, "bm25": 0.75}},
        stars,
        3600.0,
    ),
    "rare": Traffic(
        {"metrics": {"bought": {"type": "boolean"}}, "cost_weight": 0.0, "wait_time": "P1D", "default": 0.0},
        "bought",
        {"who": {"none": 0.01, "bm25": 0.04}, "how": {"none": 0.01, "bm25": 0.04}},
        clicked,
        4 * 3600.0,
        120.0,
    ),
}


@dataclass
class Clock:
    """Time that is moved."""

    now: float

    def __call__(self) -> float:
        return self.now


@dataclass
class Lived:
    """What happened at a service, as its users know it.

    Attributes:
        drawn: Questions by kind, day and the arm that answered.
        given: Values that were reported.
    """

    drawn: Counter[tuple[str, int, str]] = field(default_factory=Counter)
    given: int = 0


async def live(service: Service, clock: Clock, traffic: Traffic, days: int, seed: int) -> Lived:
    """Ask, report and learn until the clock has gone on by so many days and the longest wait time."""
    rng = np.random.default_rng(seed)
    begin, end = clock.now, clock.now + days * DAY
    lived = Lived()
    due: list[tuple[float, int, dict[str, Any] | None]] = [(begin, 0, None)]
    n, learned = 1, begin
    while due:
        clock.now, _, report = heapq.heappop(due)
        if report is not None:
            assert (await service.client.post("/v1/feedback", json=report)).status_code == 202
            lived.given += 1
            continue
        if clock.now - learned > 3600.0:
            learned = clock.now
            await service.learn()
        kind, n = KINDS[int(rng.integers(2))], n + 1
        body = {"messages": [{"role": "user", "content": f"{kind} is it {n}?"}]}
        key = {"Idempotency-Key": f"q-{n}"}  # the draw is a function of the id that it gives
        answered = await service.client.post("/v1/chat/completions", json=body, headers=key)
        assert answered.status_code == 200, answered.text
        told = answered.json()["agent"]
        lived.drawn[kind, int((clock.now - begin) // DAY), told["arm_drawn"]] += 1
        value = traffic.value(rng, traffic.mean[kind][told["arm_drawn"]])
        if value is not None:
            said_at = clock.now + min(float(rng.exponential(traffic.delay_s)), 5 * traffic.delay_s)
            one = {"decision_id": told["decision_id"], "metric_name": traffic.metric, "value": value}
            heapq.heappush(due, (said_at, n, one))
        busy = 1.0 + 0.8 * np.sin(2 * np.pi * clock.now / DAY)
        following = clock.now + float(rng.exponential(traffic.every_s / busy))
        if following < end:
            heapq.heappush(due, (following, n, None))
    clock.now = end + DAY + 60.0
    return lived


@dataclass(frozen=True)
class Week:
    """A service after its week: its configuration, its traffic, what happened, and its console."""

    config: Path
    traffic: Traffic
    lived: Lived
    console: str


@pytest.fixture(scope="module", params=SERVICES)
def week(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Week:
    folder, traffic = tmp_path_factory.mktemp("week"), SERVICES[request.param]
    clock = Clock((time.time() // DAY - DAYS - 2) * DAY)  # midnight: questions come by the time of the day
    settings: dict[str, Any] = {
        "arms": {arm: {"kind": arm} for arm in ARMS},
        "backbones": {},
        "policy": {"kind": "adaptive"},
        "floor": FLOOR,
        "reward": traffic.reward,
    }

    async def lived() -> tuple[Lived, str]:
        service = Service(folder, clock=SteadyClock(clock, clock), **settings)
        async with service.running():
            happened = await live(service, clock, traffic, DAYS, seed=7)
            await service.learn()
            await asyncio.to_thread(service.summarise)
            page = await service.client.get("/console")
        return happened, page.text

    happened, console = asyncio.run(lived())
    config = folder / "config.yaml"
    application = {"name": "armwise", "import_path": "armwise.agent.app:build"}
    log = {"home": str(folder / "home"), "log_url": f"sqlite:///{folder / 'log.db'}"}
    config.write_text(
        yaml.safe_dump({"applications": [application | {"args": {**CONFIG, **log, **settings}}]})
    )
    return Week(config, traffic, happened, console)


def run(week: Week, verb: str, *words: str) -> str:
    return said(CliRunner().invoke(app, [verb, "-c", str(week.config), *words]), 0)


@pytest.fixture(scope="module")
def replayed(week: Week, tmp_path_factory: pytest.TempPathFactory) -> Any:
    file = tmp_path_factory.mktemp("replay") / "replay.json"
    run(week, "replay", "-o", str(file))
    return json.loads(file.read_text())


def test_the_better_arm_of_each_kind_gets_the_traffic(week: Week) -> None:
    traffic, lived = week.traffic, week.lived
    for kind in KINDS:
        best = max(ARMS, key=traffic.mean[kind].__getitem__)
        last_days = Counter[str]()
        for day in range(DAYS - 2, DAYS):
            last_days.update({arm: lived.drawn[kind, day, arm] for arm in ARMS})
        assert last_days[best] > 0.75 * last_days.total(), (kind, last_days)


def test_a_replay_estimates_what_each_arm_would_have_earned(week: Week, replayed: Any) -> None:
    """Twice a 95 % interval holds the truth, and so does that of what was served."""
    traffic, lived = week.traffic, week.lived
    n = lived.drawn.total()
    served = sum(traffic.mean[kind][arm] * times for (kind, _, arm), times in lived.drawn.items()) / n
    truth = {"served": served} | {f"fixed:{arm}": traffic.truth(arm) for arm in ARMS}
    checked = 0
    for candidate in replayed["candidates"]:
        for estimate in candidate["estimates"]:
            if (expected := truth.get(candidate["name"])) is not None:
                value, low, high = (estimate["value"][key] for key in ("value", "low", "high"))
                assert value - 2 * (value - low) <= expected <= value + 2 * (high - value), candidate["name"]
                checked += 1
    assert checked == 9


def test_report_console_and_replay_say_the_same_of_what_was_served(week: Week, replayed: Any) -> None:
    traffic, lived = week.traffic, week.lived
    n = lived.drawn.total()
    rewarded = n if "default" in traffic.reward else lived.given
    assert replayed["rows"] == rewarded
    report, console = run(week, "report", "--since", "30d"), week.console
    assert f"* {n:,} decisions, {rewarded:,} with feedback." in report
    assert f"{replayed['earned']:.3f} a decision" in report
    assert f"{replayed['earned']:.3f} a decision" in console
    mean = re.search(r'reward a request</dt><dd><span class="number">([0-9.]+)</span>', console)
    assert mean is not None
    assert float(mean[1]) == pytest.approx(replayed["earned"], abs=0.0006)
    assert f"of {rewarded:,} with feedback" in console
    for arm in ARMS:
        times = sum(lived.drawn[kind, day, arm] for kind in KINDS for day in range(DAYS))
        assert f">{100 * times / n:.1f}&nbsp;%<" in console
