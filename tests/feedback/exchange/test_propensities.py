"""Propensities that nobody recorded: frequencies near those of the known policy, marked as estimates."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from armwise.feedback.events import ESTIMATED, IMPORTED, Cost
from armwise.feedback.exchange import make_rule
from armwise.feedback.exchange.propensities import Frequencies
from armwise.feedback.exchange.table import TableRow
from armwise.feedback.jsonl import Header, read_export, write_export
from tests.feedback.examples import log_of_examples
from tests.feedback.exchange.traffic import (
    ARMS,
    NAMES,
    Turn,
    as_csv,
    near_the_truth,
    read,
    table_rows,
    traffic,
)

TURNS = traffic(4000)

UNKNOWN = {name: column for name, column in NAMES.items() if name != "propensity"}


def unlogged(turns: list[Turn]) -> list[dict[str, Any]]:
    """Return rows without what the policy drew with."""
    return [
        {name: value for name, value in row.items() if name not in ("chance", "dist")}
        for row in table_rows(turns)
    ]


def row(arm: str, question: str = "?", **features: float) -> TableRow:
    return TableRow(
        "", "", question, arm, features, None, {}, None, 0.0, None, None, Cost(), failed=False, cached=False
    )


@pytest.mark.slow
def test_frequencies_at_the_same_features_are_near_the_policy(tmp_path: Path) -> None:
    examples, log = read(as_csv(tmp_path / "log.csv", unlogged(TURNS)), **UNKNOWN, estimate=True)
    assert {one.decision.policy for one in examples} == {ESTIMATED}
    assert (log.summary.estimated, log.summary.recorded, log.summary.unknown) == (4000, 0, 0)
    for one, turn in zip(examples, TURNS, strict=True):
        p = dict(zip(one.decision.arms, one.decision.probabilities, strict=True))
        assert all(abs(p[arm] - turn.p[arm]) < 0.04 for arm in ARMS)
    near_the_truth(examples)


@pytest.mark.slow
def test_without_features_the_question_is_the_context(tmp_path: Path) -> None:
    plain = {name: column for name, column in UNKNOWN.items() if name != "features"}
    examples, log = read(as_csv(tmp_path / "log.csv", unlogged(TURNS)), **plain, estimate=True, least_draws=1)
    assert log.frequencies is not None
    assert log.frequencies.contexts == 80
    assert log.summary.estimated + log.summary.unknown == 4000
    near_the_truth(examples, most=0.06)


def test_the_mark_survives_the_export_and_is_counted_in_the_log(tmp_path: Path) -> None:
    rows = table_rows(TURNS[:500])
    for at, one in enumerate(rows):
        one["chance"] = one["chance"] if at % 2 else None
    examples, _ = read(as_csv(tmp_path / "log.csv", rows), **NAMES, estimate=True)
    with (tmp_path / "log.jsonl").open("wb") as file:
        write_export(examples, file, Header(written_at=0.0, reward=make_rule("reward", (0.0, 1.0))))
    back = list(read_export(tmp_path / "log.jsonl"))
    assert Counter(one.decision.policy for one in back) == {IMPORTED: 250, ESTIMATED: 250}
    log = log_of_examples(back, make_rule("reward", (0.0, 1.0)))
    rewarded = sum(turn.reward is not None for turn in TURNS[:500:2])
    assert log.estimated == rewarded


@given(st.lists(st.sampled_from("abc"), max_size=60), st.integers(1, 20), st.integers(1, 10))
def test_an_estimate_is_a_distribution_over_arms_that_were_drawn_often_enough(
    draws: list[str], least_rows: int, least_draws: int
) -> None:
    counts, frequencies = (
        Counter(draws),
        Frequencies(by_features=False, least_rows=least_rows, least_draws=least_draws),
    )
    for arm in draws:
        frequencies.add(row(arm))
    for arm in "abc":
        found = frequencies.distribution(row(arm))
        if len(draws) < least_rows or counts[arm] < least_draws:
            assert found is None
        else:
            assert found is not None
            assert set(found) == {name for name, n in counts.items() if n >= least_draws}
            assert sum(found.values()) == pytest.approx(1.0)
            assert found[arm] == counts[arm] / sum(n for n in counts.values() if n >= least_draws)


def test_contexts_are_counted_apart() -> None:
    frequencies = Frequencies(by_features=True, least_rows=2, least_draws=1)
    for one in (row("a", x=1.0), row("a", x=1.0), row("b", x=2.0)):
        frequencies.add(one)
    assert frequencies.distribution(row("a", question="other", x=1.0)) == {"a": 1.0}
    assert frequencies.distribution(row("b", x=2.0)) is None
    assert (frequencies.contexts, frequencies.counted) == (2, 1)
