"""The training log equals a plain reference, over random histories on a real log."""

from contextlib import closing
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from armwise.feedback.reward import Aggregation, Complete, Metric, RewardRule
from tests.conftest import empty
from tests.feedback.histories import MISTAKE, WEIGHTS, WHATS, History, Step

OPS = [op for op, weight in WEIGHTS.items() for _ in range(weight)]

steps = st.lists(
    st.builds(
        Step,
        op=st.sampled_from(OPS),
        ago=st.sampled_from([1, 1, 1, 2, 2, 3, 4, 0]),
        what=st.integers(0, WHATS - 1),
        lag_s=st.sampled_from([0.0] * 8 + [0.5, 1.0, 2.0, 5.0, 13.0]),
        skew_s=st.sampled_from([0.0] * 12 + [-14.0, -10.0, -3.0, -0.5, 0.5, 7.0]),
        joined=st.booleans(),
    ),
    min_size=20,
    max_size=80,
)
metrics = st.builds(Metric, aggregation=st.sampled_from(Aggregation))
OF_SILENCE = st.sampled_from(
    [{"complete": one} for one in Complete]
    + [{"default": 0.0}, {"failed": 0.0}, {"default": 0.0, "failed": 0.0}]
)
rules = st.builds(
    lambda silence, **fields: RewardRule.model_validate({**fields, **silence}),
    OF_SILENCE,
    metrics=st.fixed_dictionaries({"right": metrics}, optional={"thumb": metrics}),
    wait_time=st.sampled_from(["PT10S", "PT3S", "PT10.1S", "PT1M"]),
    correction_time=st.sampled_from(["PT0S", "PT0.5S", "PT3S", "PT5S"]),
)
histories = given(rules=st.tuples(rules, rules), batch=st.integers(1, 12), steps=steps)


@settings(max_examples=30)
@histories
@pytest.mark.slow
def test_what_is_learned_is_what_the_document_says(
    rules: tuple[RewardRule, RewardRule], batch: int, steps: list[Step]
) -> None:
    with closing(History("sqlite://", rules, batch)) as history:
        history.run(steps)


@settings(max_examples=15)
@histories
@pytest.mark.slow
def test_it_is_the_same_where_a_statement_takes_only_two_ids(
    rules: tuple[RewardRule, RewardRule], batch: int, steps: list[Step]
) -> None:
    with pytest.MonkeyPatch.context() as patch, closing(History("sqlite://", rules, batch)) as history:
        patch.setattr("armwise.feedback.log.rows.LOOKED_UP", 2)
        history.run(steps)


talks = st.lists(
    st.builds(
        Step,
        op=st.sampled_from(["decide", *["continue"] * 3, *["execute"] * 5, *OPS[::6]]),
        ago=st.sampled_from([1, 1, 1, 2]),
        what=st.sampled_from([*range(3, WHATS, 3), *range(MISTAKE, WHATS)]),
        lag_s=st.sampled_from([0.0] * 4 + [1.0, 2.0, 5.0]),
        skew_s=st.sampled_from([0.0] * 8 + [-3.0, 0.5]),
    ),
    min_size=15,
    max_size=40,
)


@settings(max_examples=12)
@given(rules=st.tuples(rules, rules), batch=st.integers(1, 12), steps=talks)
@pytest.mark.slow
def test_conversations_are_learned_as_the_document_says(
    rules: tuple[RewardRule, RewardRule], batch: int, steps: list[Step]
) -> None:
    with closing(History("sqlite://", rules, batch)) as history:
        history.run(steps)


@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@histories
@pytest.mark.slow
def test_it_is_the_same_on_postgresql(
    postgres_url: str, rules: tuple[RewardRule, RewardRule], batch: int, steps: list[Step]
) -> None:
    empty(postgres_url)  # of the history before
    with closing(History(postgres_url, rules, batch)) as history:
        history.run(steps)


SILENCE: list[dict[str, Any]] = [
    {"complete": Complete.ANY},
    {"complete": Complete.ALL},
    {"failed": 0.0, "complete": Complete.DEADLINE},
]


@pytest.mark.parametrize(("seed", "decisions"), [(0, 1200), (1, 300), (2, 300)])
@pytest.mark.slow
def test_a_long_history_of_delays_and_clocks_that_disagree_is_learned_as_the_document_says(
    seed: int, decisions: int
) -> None:
    rng = np.random.default_rng(seed)
    one, other = (
        RewardRule(
            metrics={name: Metric(aggregation=rng.choice(list(Aggregation))) for name in ("right", "thumb")},
            wait_time=wait_time,
            correction_time="PT1.5S",
            **silence,
        )
        for silence, wait_time in [
            (SILENCE[seed], "PT10.1S"),
            ({"default": 0.0, "complete": Complete.DEADLINE}, "PT4S"),
        ]
    )
    with closing(History("sqlite://", (one, other), batch=500, thorough=False)) as history:
        history.run(traffic(rng, decisions))
        assert len(history.log) > 5 * decisions
        assert len(history.examples(0)) > 0.3 * decisions


def traffic(rng: np.random.Generator, decisions: int) -> list[Step]:
    """Decisions a tenth of a second apart, each with what happens to it, in the order of the clock."""
    started = [0.1 * number for number in range(decisions)]
    happens = [(at, "decide", number) for number, at in enumerate(started)]
    for op, n, delay_s in (
        ("execute", 2.0, 0.5),
        ("activate", 0.2, 4.0),
        ("say", 3.0, 4.0),
        ("retract", 0.6, 4.0),
        ("say of episode", 0.7, 4.0),
        ("retract of episode", 0.3, 4.0),
    ):
        for number, times in enumerate(rng.poisson(n, decisions)):
            delays = rng.exponential(delay_s, times) - (0.3 if op != "execute" else 0.0)
            happens += [(started[number] + delay, op, number) for delay in delays.tolist()]
    for op, n in (
        ("look", 60),
        ("look by another rule", 20),
        ("fail", 10),
        ("be superseded", 5),
        ("label", 20),
    ):
        happens += [(at, op, 0) for at in rng.uniform(0, started[-1], n).tolist()]
    happens.sort()
    steps, made, clock = [], 0, 0.0
    for at, op, number in happens:
        steps.append(
            Step(
                op,
                made - number,
                int(rng.integers(MISTAKE + 1, WHATS)),
                lag_s=max(0.0, at - clock),
                skew_s=float(rng.normal(0.0, 1.0)) if rng.random() < 0.3 else 0.0,
                joined=bool(rng.random() < 0.8),
            )
        )
        made, clock = made + (op == "decide"), max(clock, at)
    return steps
