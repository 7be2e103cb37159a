"""Every interval that a page, report or command shows: possible, around its estimate, and never closed."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from armwise.agent.config import AppConfig, parse
from armwise.agent.console import savings
from armwise.agent.evaluation import replay
from armwise.agent.evaluation.evaluation_request import EvaluationRequest
from armwise.agent.lab.offline.evaluate import evaluate_scores
from armwise.agent.lab.offline.portfolio_report import ComparedScores
from armwise.agent.lab.routers import cascade
from armwise.agent.proof import About
from armwise.agent.routers import Stage
from armwise.agent.routers.utility import Utility
from armwise.feedback.arrays import Floats
from armwise.feedback.events import (
    Context,
    Cost,
    Decision,
    Execution,
    Feedback,
    Mode,
    Status,
)
from armwise.feedback.log import Store
from armwise.feedback.ope import ESTIMATORS, Interval
from armwise.feedback.ope.evaluation import INTERVALS
from armwise.feedback.reward import Prices
from armwise.feedback.sources import LogSource
from tests.agent.asking import join
from tests.agent.fakes import CONFIG
from tests.agent.lab.offline.test_evaluate_router import table
from tests.agent.lab.routers.cascade.test_cascade import World, made, world  # noqa: F401

ARMS = tuple(CONFIG["arms"])
SIZES = (1, 2, 5, 100)
RANGE = (-1.0, 1.0)
SPAN = (-2.0, 2.0)


@dataclass(frozen=True, slots=True)
class Figure:
    """A number that is shown.

    Attributes:
        name: What it is.
        value: The estimate; None where the interval alone is shown.
        interval: Its interval.
        possible: Smallest and largest possible value.
        known: Whether the rows determine it, so that its interval has no width.
    """

    name: str
    value: float | None
    interval: Interval
    possible: Interval
    known: bool = False


class Logged:
    """A log of uniform draws with feedback.

    Attributes:
        config: Declares rewards from -1 to 1, without costs.
        store: The log.
        rewards: Feedback on each decision.
    """

    def __init__(self, folder: Path, rewards: Sequence[float], *, repeated: bool) -> None:
        judged = {"metrics": {"thumb": {"range": list(RANGE)}}, "complete": "any", "clip": list(RANGE)}
        url = f"sqlite:///{folder / 'log.db'}"
        self.config: AppConfig = parse({**CONFIG, "reward": judged, "log_url": url})
        self.store = Store(self.config.database_url, self.config.reward.join)
        self.rewards = rewards
        facts: list[Decision | Execution | Feedback] = []
        draws = np.random.default_rng(0).permutation(np.arange(len(rewards)) % len(ARMS))
        for i, reward in enumerate(rewards):
            name, drawn = f"d{i}", ARMS[draws[i]]
            question = "the same question" if repeated else f"question {i}"
            context = Context(question, {"tier=free": 1.0, f"w=w{i}": 1.0}, (), {arm: {} for arm in ARMS})
            p = (1.0 / len(ARMS),) * len(ARMS)
            facts += [
                Decision(name, context, ARMS, p, drawn, "uniform", 1, Mode.EXPLORE, 1.0, 100.0),
                Execution(name, drawn, Status.OK, Cost(), finished_at=1.5),
                Feedback(f"{name}:f", name, "thumb", reward, 1.0),
            ]
        self.store.append(facts)
        join(self.store, self.config)


def of_statements(log: Logged) -> Iterator[Figure]:
    """What was served beside each arm, as the console, `prove` and `report` state it."""
    for one in savings.read_statements(log.store, log.config)[0].all:
        if one.about is About.QUALITY and one.low is not None and one.high is not None:
            yield Figure(
                f"quality beside {one.reference}", one.estimate, (one.low, one.high), (-100.1, 100.1)
            )


def of_reports(log: Logged) -> Iterator[Figure]:
    """Evaluations with the gate; `replay` and the demo show the same."""
    for interval in INTERVALS:
        asked = EvaluationRequest(estimators=tuple(ESTIMATORS), interval=interval, gate=interval == "anytime")
        source = LogSource(log.store, log.config.reward)
        report = replay(log.config, asked, source, log.store, lambda *_: None)
        for one in report["candidates"]:
            if one["verdict"] is not None:
                seen = one["verdict"]["figures"]
                yield Figure(f"gate on {one['name']}", seen["gain"], (seen["low"], SPAN[1]), SPAN)
            for each in one["estimates"]:
                name = f"{interval} {each['estimator']} of {one['name']}"
                if (value := each["value"]) is not None:
                    yield Figure(name, value["value"], (value["low"], value["high"]), RANGE)
                if (gain := each["difference"]) is not None:
                    of = one["weights"]
                    same = (
                        of is not None
                        and of["largest"] < 1.0 + 1e-6
                        and of["effective_n"] > one["rows"] - 1e-6
                    )
                    known = same and gain["kind"] in ("normal", "bootstrap")  # draws as the log in every row
                    yield Figure(f"gain, {name}", gain["value"], (gain["low"], gain["high"]), SPAN, known)


def of_portfolios(log: Logged) -> Iterator[Figure]:
    """The lead of a portfolio over the arms of the largest means."""
    scores = scores_of(log)[:, [1, 0, 2]].T.astype(np.float32)
    found = ComparedScores.from_picks(scores, (0, 2), (0, 1), 0).compare(np.random.default_rng(0))
    assert found.lead is not None
    for size, (value, other, ends) in enumerate(
        zip(found.portfolio, found.average, found.lead, strict=True), start=1
    ):
        yield Figure(f"lead of {size} arms", value - other, ends, (-1.0, 1.0), known=size == 1)


def of_routers(log: Logged) -> Iterator[Figure]:
    """The gap that a router closes, and its curve of cost and quality."""
    scores = scores_of(log)
    for chosen in (scores, -scores, np.tile([1.0, 0.5, 0.0], (len(scores), 1))):
        for cost_weight in (0.0, 0.01):
            utility = Utility(measures={"em": 1.0}, cost_weight=cost_weight, cost=Prices(steps=1.0))
            known, rng = table(scores.tolist(), [3.0, 2.0, 1.0]), np.random.default_rng(0)
            found = evaluate_scores(known, chosen, utility, Stage.QUESTION, 200, rng)
            if found.gap is not None:
                assert found.interval is not None
                yield Figure("gap", found.gap, found.interval, (-np.inf, 1.0))
            if (curve := found.curve) is None:
                continue
            yield Figure("area", curve.area, curve.interval, (0.0, 1.0))
            yield Figure("gain over mixtures", curve.gain, curve.gain_interval, (-1.0, 1.0))
            for need in curve.needs:
                yield Figure(f"calls for {need.target}", need.calls, need.calls_interval, (0.0, 1.0))
                yield Figure(f"cost of {need.target}", need.cost, need.cost_interval, (0.0, 1.0))


def scores_of(log: Logged) -> Floats:
    """Return scores of three arms, shape (n, 3): as the rewards say, none, and half."""
    right = 0.5 + np.array(log.rewards) / 2.0
    return np.stack([right, np.zeros(len(right)), np.full(len(right), 0.5)], axis=1)


SHOWN: tuple[Callable[[Logged], Iterator[Figure]], ...] = (
    of_statements,
    of_reports,
    of_portfolios,
    of_routers,
)


def check(figures: Sequence[Figure]) -> None:
    """Check that each interval is possible, around its estimate, and of some width unless it is known."""
    for one in figures:
        low, high = one.interval
        assert one.possible[0] <= low <= high <= one.possible[1], one
        assert one.value is None or low - 1e-12 <= one.value <= high + 1e-12, one
        assert (high - low < 1e-12) if one.known else (high - low > 1e-3), one


REWARDS: dict[str, Callable[[int], Floats]] = {
    "all the best": np.ones,
    "all the worst": lambda n: -np.ones(n),
    "all equal": lambda n: np.full(n, 0.25),
    "two values": lambda n: np.where(np.arange(n) % 5 % 2, 1.0, -1.0),
}


@pytest.mark.parametrize("repeated", [False, True], ids=["questions", "one question"])
@pytest.mark.parametrize("rewards", REWARDS)
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.slow
def test_every_shown_interval_is_possible_around_its_estimate_and_open(
    n: int, rewards: str, repeated: bool, tmp_path: Path
) -> None:
    """From a log of n rows, whether rewards and questions differ or not."""
    log = Logged(tmp_path, REWARDS[rewards](n).tolist(), repeated=repeated)
    with closing(log.store):
        shown = [figure for figures in SHOWN for figure in figures(log)]
    check(shown)
    assert len({figure.name for figure in shown}) > 40


@pytest.mark.parametrize("n", SIZES)
def test_the_intervals_of_a_cascade_are_possible_and_open(
    n: int,
    made: cascade.Cascade,  # noqa: F811
    world: World,  # noqa: F811
) -> None:
    """Also where one question is repeated, on which the cascade is always right."""
    labels = world.labels(0.01)
    outcomes = table(world.right.tolist(), [1.0, 2.0, 3.0])
    rows = np.arange(len(world.texts))
    for kept in (rows < n, rows // 3 * 3 == rows):
        at = np.flatnonzero(kept)[:n]
        some = cascade.CascadeDataset(
            tuple(part.rows(at) for part in labels.features),
            labels.right[at],
            labels.quality[at],
            labels.cost[at],
        )
        found = cascade.validate_cascade(made, some, outcomes.only(np.isin(rows, at)))
        gain = found.rows["cascade"].reward - found.rows[found.single].reward
        figures = [
            Figure("gain", gain, found.gain, (-1.1, 1.1)),
            Figure("lost", found.lost, found.lost_interval, (-1.0, 1.0)),
            Figure("bias", found.bias, found.bias_interval, (-1.0, 1.0)),
        ]
        if found.gap is not None:
            assert found.gap_interval is not None
            figures.append(Figure("gap", found.gap, found.gap_interval, (-np.inf, 1.0)))
        check(figures)
    assert replace(found, gap=None).conclusion()
