"""Evaluation of a log whose truth is known: one arm is always right, the draws were uniform."""

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from agent.config import AppConfig, parse
from agent.evaluation import EvaluationError, Report, evaluate_log
from agent.policies.catalog import PolicySpec
from feedback.events import Context, Cost, Decision, Execution, Feedback, Mode, Status
from feedback.store import Store
from tests.agent.asking import join
from tests.agent.fakes import CONFIG

ARMS = tuple(CONFIG["arms"])
TRUTH = {"none": -1.0, "bm25": 0.0, "dense": 1.0}
STEPS = {"none": 0, "bm25": 1, "dense": 2}
N = 240
ESTIMATORS = ["ips", "snips", "dr"]


def turn(number: int, drawn: str, mode: Mode = Mode.EXPLORE, eligible: tuple[str, ...] = ARMS) -> list[Any]:
    name = f"d-{number}"
    arms = eligible if mode is Mode.EXPLORE else (drawn,)
    p = (1 / len(arms),) * len(arms)
    context = Context(f"question {number}", {"w=river": 1.0}, (), {arm: {} for arm in ARMS})
    return [
        Decision(name, context, arms, p, drawn, "uniform", 1, mode, decided_at=1.0, deadline=100.0),
        Execution(name, drawn, Status.OK, Cost(steps=STEPS[drawn])),
        Feedback(f"{name}:f", name, "thumb", TRUTH[drawn], 1.0),
    ]


@pytest.fixture
def config(tmp_path: Path) -> AppConfig:
    return parse({**CONFIG, "log_url": f"sqlite:///{tmp_path / 'log.db'}"})


@pytest.fixture
def filled(config: AppConfig, store: Store) -> AppConfig:
    """A log of N uniform draws, every arm equally often, and a few that were forced."""
    draws = np.random.default_rng(0).permutation(np.repeat(ARMS, N // 3))
    facts = [fact for number, drawn in enumerate(draws) for fact in turn(number, str(drawn))]
    store.append(facts + [fact for number in range(N, N + 5) for fact in turn(number, "none", Mode.FORCED)])
    join(store, config)
    return config


def evaluated(config: AppConfig, names: list[str] | None = None) -> Report:
    return evaluate_log(config, names, np.random.default_rng(0), lambda *_: None)


def printed(report: Report) -> list[str]:
    output = StringIO()
    Console(file=output, width=120).print(report.table())
    return output.getvalue().splitlines()


def test_every_arm_gets_its_true_value_and_uniform_what_was_earned(filled: AppConfig) -> None:
    report = evaluated(filled)
    assert list(report.candidates) == ["uniform", *(f"fixed:{arm}" for arm in ARMS), "configured"]
    assert report.excluded == {"forced": 5}
    true = {arm: TRUTH[arm] - 0.1 * STEPS[arm] for arm in ARMS}
    assert report.n == N
    assert report.earned == pytest.approx(sum(true.values()) / 3)
    for arm, value in true.items():
        estimates = report.candidates[f"fixed:{arm}"]
        assert [estimate.estimator for estimate in estimates] == ESTIMATORS
        for estimate in estimates:
            assert estimate.value == pytest.approx(value, abs=0.01)
            assert estimate.low <= value <= estimate.high
            assert estimate.n == N
        assert estimates[0].effective_n == pytest.approx(N / 3)
    ips, snips, dr = report.candidates["uniform"]
    assert ips.value == pytest.approx(report.earned)
    assert snips.value == pytest.approx(report.earned)
    assert dr.value == pytest.approx(report.earned, abs=0.01)


def test_the_configured_policy_is_better_than_chance_and_worse_than_the_best_arm(filled: AppConfig) -> None:
    report = evaluated(filled, ["configured", "fixed:dense"])
    assert list(report.candidates) == ["configured", "fixed:dense"]
    for learned, best in zip(report.candidates["configured"], report.candidates["fixed:dense"], strict=True):
        assert report.earned + 0.3 < learned.value < best.value


def test_each_decision_is_scored_before_it_is_learned_from(config: AppConfig, store: Store) -> None:
    store.append(turn(0, "dense") + turn(1, "none"))
    join(store, config)
    fresh = config.model_copy(
        update={"policy": config.policy.model_copy(update={"kind": "uniform", "params": {}})}
    )
    first = evaluated(fresh, ["uniform", "configured"])
    assert first.candidates["configured"] == first.candidates["uniform"]


def test_a_candidate_that_the_log_never_drew_has_a_row_without_a_value(
    config: AppConfig, store: Store
) -> None:
    store.append([fact for number in range(8) for fact in turn(number, ("bm25", "dense")[number % 2])])
    join(store, config)
    report = evaluated(config)
    assert report.candidates["fixed:none"] == []
    assert all(found for name, found in report.candidates.items() if name != "fixed:none")
    unknown = dict.fromkeys(("estimator", "value", "low", "high"))
    assert report.as_json()["candidates"]["fixed:none"] == [
        {**unknown, "n": 8, "effective_n": 0.0, "note": "never drawn"}
    ]
    (line,) = (line for line in printed(report) if "fixed:none" in line)
    assert line.replace("\u2502", " ").split() == ["fixed:none", "never", "drawn", "n/a", "n/a", "0", "0"]


def test_one_question_alone_is_estimated_without_a_reward_model(config: AppConfig, store: Store) -> None:
    store.append(turn(0, "dense"))
    join(store, config)
    report = evaluated(config, ["uniform"])
    assert [estimate.estimator for estimate in report.candidates["uniform"]] == ["ips", "snips"]
    assert "dr is left out: it needs two different questions" in report.footnote()


def test_a_fixed_policy_is_evaluated_on_a_log_that_does_not_know_its_arm(
    config: AppConfig, store: Store
) -> None:
    pair = ("none", "bm25")
    for number, drawn in enumerate(pair * 3):
        decision, *rest = turn(number, drawn)
        store.append([replace(decision, arms=pair, probabilities=(0.5, 0.5)), *rest])
    join(store, config)
    fixed = config.model_copy(update={"policy": PolicySpec(kind="fixed", params={"arm": "dense"})})
    report = evaluated(fixed, ["uniform", "configured"])
    assert report.candidates["configured"] == report.candidates["uniform"]


def test_what_was_not_learned_is_counted_by_reason(filled: AppConfig, store: Store) -> None:
    failed, quiet = turn(1000, "bm25"), turn(1001, "bm25")
    failed[1] = replace(failed[1], status=Status.ARM_FAILED)
    store.append([*failed, *quiet[:2], *turn(1002, "none", Mode.GREEDY)])
    report = evaluated(filled, ["uniform"])
    assert report.n == N
    assert report.excluded == {"forced": 5, "arm failed": 1, "greedy": 1, "not judged": 1}
    assert report.footnote().startswith(
        "Left out: 5 forced, 1 arm failed, 1 greedy, 1 not judged. Values are"
    )


def test_the_same_seed_gives_the_same_report(filled: AppConfig) -> None:
    assert evaluated(filled) == evaluated(filled)


def test_progress_is_told_to_the_end(filled: AppConfig) -> None:
    told: list[tuple[str, int, int | None]] = []
    evaluate_log(filled, ["uniform"], np.random.default_rng(0), lambda *what: told.append(what))
    assert told == [("reading the log", N, N), ("evaluating policies", 1, 1)]


def test_a_log_without_examples_is_told_how_to_be_filled(config: AppConfig) -> None:
    with pytest.raises(EvaluationError, match="learned from nothing yet: ask, send feedback, then replay"):
        evaluated(config)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("best", "policy 'best' is none of: uniform, fixed:<arm>, configured"),
        ("fixed", "policy 'fixed' is none of"),
        ("fixed:", "policy 'fixed:' is none of"),
        ("uniform:dense", "policy 'uniform:dense' is none of"),
        ("fixed:bm52", "arm 'bm52' is not in the log; it has: .*bm25"),
    ],
)
def test_a_candidate_unheard_of_is_refused(filled: AppConfig, name: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        evaluated(filled, [name])


def test_a_changed_reward_scores_the_same_log_again(filled: AppConfig) -> None:
    free = filled.model_copy(update={"reward": filled.reward.model_copy(update={"cost_weight": 0.0})})
    (ips, *_) = evaluated(free, ["fixed:dense"]).candidates["fixed:dense"]
    assert ips.value == pytest.approx(1.0)


def test_a_report_is_a_document_and_a_table(filled: AppConfig) -> None:
    report = evaluated(filled, ["uniform", "fixed:dense"])
    document = json.loads(json.dumps(report.as_json()))
    assert document["candidates"]["fixed:dense"][0]["estimator"] == "ips"
    assert document["n"] == N
    lines = printed(report)
    assert f"{N} logged decisions" in lines[0]
    assert sum("snips" in line for line in lines) == 2


def test_a_log_that_was_learned_whole_leaves_nothing_out(config: AppConfig, store: Store) -> None:
    store.append(turn(0, "dense") + turn(1, "none"))
    join(store, config)
    assert "Left out: none." in evaluated(config, ["uniform"]).footnote()


def test_a_fixed_arm_is_evaluated_where_it_could_have_been_drawn(config: AppConfig, store: Store) -> None:
    facts = [fact for n in range(60) for fact in turn(n, ARMS[n % 2], eligible=ARMS[:2])]
    store.append([*facts, *(fact for n in range(60, 90) for fact in turn(n, ARMS[n % 3]))])
    join(store, config)
    candidates = ["fixed:dense", "fixed:bm25"]
    report = evaluate_log(config, candidates, np.random.default_rng(0), lambda *_: None)
    assert {name: {e.n for e in found} for name, found in report.candidates.items()} == {
        "fixed:dense": {30},
        "fixed:bm25": {90},
    }
    dense = {e.estimator: e.value for e in report.candidates["fixed:dense"]}
    assert dense["snips"] == pytest.approx(TRUTH["dense"] - 0.1 * STEPS["dense"])
