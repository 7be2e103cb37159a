"""What the detectors are given: rewards less what features explain, and questions beside the first ones."""

import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from math import inf

import numpy as np
import pytest

from armwise.feedback.drift import monitor
from armwise.feedback.drift.monitor import Monitor
from armwise.feedback.events import Context, Cost, Example
from armwise.feedback.reward import Metric, RewardRule
from tests.feedback.conftest import decision

RULE = RewardRule(metrics={"right": Metric()}, cost_weight=0.0)


def test_the_detectors_are_loaded_with_the_first_value() -> None:
    code = """
import sys
from armwise.feedback.drift.monitor import DriftSpec, MonitoredSeries
series = MonitoredSeries(1.0)
before = "river" in sys.modules
series.see(0.5)
print(before, "river" in sys.modules)
"""
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ran.stdout == "False True\n"


class Streams:
    """Stands for the detectors: keeps what each of them is given, and finds the changes that it is asked to.

    Attributes:
        seen: Value and expectation of each call, by the order in which the streams were made.
        changes: What a call finds, by the number of the stream and of its call, from 0.
        possible: Smallest and largest possible value of each.
    """

    def __init__(self) -> None:
        self.seen: defaultdict[int, list[tuple[float, float]]] = defaultdict(list)
        self.changes: dict[tuple[int, int], tuple[float, float]] = {}
        self.possible: list[tuple[float, float]] = []
        self.made = 0

    def __call__(self, span: float, possible: tuple[float, float] = (-inf, inf)) -> "_Stream":
        del span
        self.possible.append(possible)
        self.made += 1
        return _Stream(self, self.made - 1)


class _Stream:
    def __init__(self, streams: Streams, number: int) -> None:
        self._streams, self._number = streams, number

    def see(self, value: float, expected: float = 0.0) -> tuple[float, float] | None:
        seen = self._streams.seen[self._number]
        seen.append((value, expected))
        return self._streams.changes.get((self._number, len(seen) - 1))


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Streams:
    found = Streams()
    monkeypatch.setattr(monitor, "MonitoredSeries", found)
    return found


QUESTIONS, ARM = (3, 4, 5), 6
"""Streams of the questions (length, unknown features, likeness) and of the first arm, in the first block."""


def example(seq: int, context: Context, arm: str = "a") -> Example:
    made = replace(decision(f"d{seq}"), drawn=arm, context=context)
    return Example(seq, made, Cost(), {"right": 1.0})


def contexts(n: int, seed: int = 5) -> Iterator[Context]:
    """Yield questions with named features, features of the arm, and an embedding."""
    rng = np.random.default_rng(seed)
    for i in range(n):
        named = {"long": float(rng.normal()), **({"code": 1.0} if rng.random() < 0.5 else {})}
        own = {"steps": 2.0, "router": float(rng.random()) if i else 0.5}
        yield Context("why?", named, tuple(rng.normal(size=3)), {"a": own})


def predicted(rewards: list[float], seen: list[Context]) -> list[float]:
    """Return what normalised least mean squares predicts before each reward: another implementation of it.

    One weight for each feature; that of a feature learns with the sum of its squares, plus 1, as the
    denominator of its rate. The mean learns with a rate of 1/n, at least 0.02.
    """
    names = ["long", "code", "steps", "router"]
    weights, squares, level, expected = np.zeros(7), np.ones(7), 0.0, []
    first = seen[0].arms["a"]
    for n, (reward, context) in enumerate(zip(rewards, seen, strict=True), start=1):
        features = dict(context.features) | ({} if context.arms["a"] == first else dict(context.arms["a"]))
        x = np.array([features.get(name, 0.0) for name in names] + [*context.embedding])
        expected.append(float(weights @ x))
        error = reward - level - expected[-1]
        level += error * max(1 / n, 0.02)
        squares += x * x
        weights += error / max(float(x @ x), 1e-9) * x / squares
    return expected


def test_a_reward_is_compared_with_what_the_features_of_question_and_arm_predict(streams: Streams) -> None:
    seen, rng = list(contexts(400)), np.random.default_rng(6)
    rewards = [float(np.tanh(c.embedding[0] + c.features["long"]) * 0.4 + rng.normal() * 0.1) for c in seen]
    watch = Monitor(RULE)
    for i, (context, reward) in enumerate(zip(seen, rewards, strict=True)):
        assert watch.see(example(i + 1, context), reward) == []
    found = streams.seen[ARM]
    assert [value for value, _ in found] == rewards[200:], "the first 200 only train"
    expected = np.clip(predicted(rewards, seen)[200:], -1.0, 1.0)
    assert [one for _, one in found] == pytest.approx(expected.tolist(), abs=1e-9)
    assert np.std(expected) > 0.1, "it predicts something"


def test_features_of_an_arm_that_never_differ_predict_nothing(streams: Streams) -> None:
    watch = Monitor(RULE)
    for i in range(1, 203):
        watch.see(example(i, Context("?", {}, (), {"a": {"steps": 2.0}})), 1.0)
    assert streams.seen[ARM] == [(1.0, 0.0)] * 2


def test_ten_thousand_named_features_predict_and_no_more(streams: Streams) -> None:
    watch = Monitor(RULE)
    first = {f"f{i}": 1.0 for i in range(9_999)}
    watch.see(example(1, Context("?", first)), 0.0)
    for i in range(2, 202):
        watch.see(example(i, Context("?", {"last": 1.0})), 1.0)
    watch.see(example(202, Context("?", {"last": 1.0, "beyond": 1.0})), 1.0)
    watch.see(example(203, Context("?", {"beyond": 1.0})), 1.0)
    with_last, with_both, beyond = (expected for _, expected in streams.seen[ARM])
    assert 0.1 < with_last <= with_both, "the ten-thousandth has a weight"
    assert beyond == 0.0, "the next one has none"


def test_questions_are_compared_with_the_first_five_hundred(streams: Streams) -> None:
    watch = Monitor(RULE)
    for i in range(1, 501):
        watch.see(example(i, Context("two words", {"a": 1.0, "b": 1.0}, (3.0, 0.0))), 0.5)
    assert [streams.seen[number] for number in QUESTIONS] == [[], [], []]
    words = " ".join(["word"] * 40)
    watch.see(example(501, Context(words, {"a": 1.0, "c": 1.0, "d": 1.0, "e": 1.0}, (0.0, 2.0))), 0.5)
    watch.see(example(502, Context("two words", {"b": 1.0}, (2.0, 0.0))), 0.5)
    watch.see(example(503, Context("two words", {}, (2.0,))), 0.5)
    length, unknown, likeness = ([value for value, _ in streams.seen[number]] for number in QUESTIONS)
    assert length == [32.0, 2.0, 2.0], "clipped at 32 words"
    assert unknown == [0.75, 0.0], "shares of the features of a question; one without features has none"
    assert likeness == pytest.approx([0.0, 2.0 / 3.0]), "one of another dimension has none"


def test_each_change_of_arm_and_questions_is_named_and_restarts_what_has_changed(streams: Streams) -> None:
    watch = Monitor(RULE)
    streams.changes = {(ARM, 300): (0.9, 0.4), (3, 0): (5.0, 9.0), (4, 0): (0.1, 0.6)}
    found = [
        (i, one)
        for i in range(1, 1100)
        for one in watch.see(example(i, Context("?", {"a": 1.0}, (1.0,))), 1.0)
    ]
    assert [(i, one.subject, one.before, one.after, one.example_seq) for i, one in found] == [
        (501, "reward of a", 0.9, 0.4, 501),
        (501, "length of questions", 5.0, 9.0, 501),
        (501, "unknown features", 0.1, 0.6, 501),
    ]
    assert streams.made == 11, "three of questions and one of the arm, and again"
    assert len(streams.seen[ARM]) == 301
    assert len(streams.seen[10]) == 1099 - 501 - 200, "the arm trains anew"
    assert len(streams.seen[7]) == 1099 - 501 - 500, "the questions are compared with later ones"


def test_statistics_restart_with_each_hundred_thousand_examples(streams: Streams) -> None:
    watch = Monitor(RULE)
    for seq in (1, 99_999, 100_000):
        watch.see(example(seq, Context("?")), 1.0)
    assert streams.made == 7, "before the first example, and with its block"
    watch.see(example(100_001, Context("?")), 1.0)
    assert streams.made == 11


def test_an_expected_mean_is_cut_to_the_range_of_its_values(streams: Streams) -> None:
    rule = replace_clip(RULE, (0.25, 0.75))
    watched = Monitor(rule)
    watched.see(example(1, Context("which river is it?", {"w=river": 1.0})), 0.5)
    of_questions = [(0.0, monitor.LONGEST), (0.0, 1.0), (-inf, inf)]
    assert streams.possible[QUESTIONS[0] : ARM + 1] == [*of_questions, (0.25, 0.75)]


def replace_clip(rule: RewardRule, clip: tuple[float, float]) -> RewardRule:
    return rule.model_copy(update={"clip": clip})
