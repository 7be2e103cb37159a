"""Evaluation of a log whose truth is known: one arm is always right, the draws were uniform."""

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from pydantic import ValidationError
from typer.testing import CliRunner

from armwise.agent.cli.main import app
from armwise.agent.config import AppConfig, parse
from armwise.agent.evaluation.candidate_names import CandidateError, EvaluationError
from armwise.agent.evaluation.candidates import PolicyCandidate
from armwise.agent.evaluation.evaluation_request import EvaluationRequest
from armwise.agent.evaluation.replay_document import (
    CandidateResult,
    Interval,
    ReplayDocument,
)
from armwise.agent.evaluation.replay_log import read_selection, replay
from armwise.agent.evaluation.replay_page import find_headline, list_footnotes, list_remarks, make_page
from armwise.agent.learning import Learner, Recipe, publish_candidate, train_on
from armwise.agent.policies import (
    Policy,
    PolicySpec,
    build_policy,
    choose,
    compute_served_distribution,
    sampling,
)
from armwise.feedback.events import Context, Cost, Decision, Example, Execution, Feedback, Mode, Status, Tick
from armwise.feedback.gate_spec import GateSpec
from armwise.feedback.log import Store
from armwise.feedback.ope import judge
from armwise.feedback.registry import versions
from armwise.feedback.reward import Prices
from armwise.feedback.sources import LogSource
from armwise.feedback.training_log import take_epoch
from armwise.feedback.training_log.examples import read_learned_examples
from tests.agent.asking import join
from tests.agent.evaluation.logged import quietly
from tests.agent.evaluation.test_candidates import Examples
from tests.agent.fakes import CONFIG
from tests.steps import change

ARMS = tuple(CONFIG["arms"])
TRUTH = {"none": -1.0, "bm25": 0.0, "dense": 1.0}
STEPS = {"none": 0, "bm25": 1, "dense": 2}
NET = {arm: (TRUTH[arm] + 1.0) / 2.0 - 0.1 * STEPS[arm] for arm in ARMS}
N = 240
ESTIMATORS = ["ips", "snips", "dr"]


def turn(number: int, drawn: str, mode: Mode = Mode.EXPLORE, eligible: tuple[str, ...] = ARMS) -> list[Any]:
    name = f"d-{number}"
    arms = eligible if mode is Mode.EXPLORE else (drawn,)
    p = (1 / len(arms),) * len(arms)
    side = {"side=left": 1.0} if number % 2 else {"side=right": 1.0}
    context = Context(f"question {number}", {"w=river": 1.0, **side}, (), {arm: {} for arm in ARMS})
    return [
        Decision(
            name, context, arms, p, drawn, "uniform", 1 + number // 100, mode, decided_at=1.0, deadline=100.0
        ),
        Execution(name, drawn, Status.OK, Cost(steps=STEPS[drawn])),
        Feedback(f"{name}:f", name, "thumb", TRUTH[drawn], 1.0),
    ]


@pytest.fixture
def config(tmp_path: Path) -> AppConfig:
    return parse({**CONFIG, "log_url": f"sqlite:///{tmp_path / 'log.db'}"})


@pytest.fixture
def store(config: AppConfig) -> Iterator[Store]:
    """The log, as an evaluation opens it."""
    with closing(Store(config.database_url, config.reward.join)) as store:
        yield store


def mix(arms: np.ndarray) -> list[str]:
    """Return arms in the order of draws at random."""
    return [str(arm) for arm in np.random.default_rng(0).permutation(arms)]


@pytest.fixture
def filled(config: AppConfig, store: Store, monkeypatch: pytest.MonkeyPatch) -> AppConfig:
    """A log of N uniform draws, every arm equally often, and a few that were forced; read in blocks."""
    monkeypatch.setattr("armwise.agent.evaluation.replay_log.BLOCK", 64)
    facts = [fact for n, drawn in enumerate(mix(np.repeat(ARMS, N // 3))) for fact in turn(n, drawn)]
    store.append(facts + [fact for number in range(N, N + 5) for fact in turn(number, "none", Mode.FORCED)])
    join(store, config)
    return config


def evaluated(config: AppConfig, store: Store, *candidates: str, **asked: Any) -> ReplayDocument:
    request = EvaluationRequest(candidates=candidates, **asked)
    return replay(config, request, LogSource(store, config.reward), store, quietly)


def of(report: ReplayDocument, name: str) -> CandidateResult:
    (found,) = (one for one in report["candidates"] if one["name"] == name)
    return found


def values(one: CandidateResult) -> dict[str, Interval]:
    return {each["estimator"]: each["value"] for each in one["estimates"] if each["value"] is not None}


def differences(one: CandidateResult) -> dict[str, Interval]:
    return {
        each["estimator"]: each["difference"] for each in one["estimates"] if each["difference"] is not None
    }


@pytest.mark.slow
def test_every_arm_gets_its_true_value_and_uniform_what_was_earned(filled: AppConfig, store: Store) -> None:
    report = evaluated(filled, store)
    assert [one["name"] for one in report["candidates"]] == [
        "served",
        "uniform",
        *(f"fixed:{arm}" for arm in report["drawn"]),
        "configured",
    ]
    assert report["excluded"] == {"forced": 5}
    assert (report["rows"], report["observations"], report["positions"]) == (N, N, [1, N])
    assert report["earned"] == pytest.approx(sum(NET.values()) / 3)
    assert report["drawn"] == dict.fromkeys(ARMS, pytest.approx(1 / 3))
    for arm, net in NET.items():
        one = of(report, f"fixed:{arm}")
        assert list(values(one)) == ESTIMATORS
        for value in values(one).values():
            assert value["value"] == pytest.approx(net, abs=0.01)
            assert value["low"] <= net <= value["high"]
        assert list(differences(one)) == ESTIMATORS
        for gain in differences(one).values():
            assert gain["value"] == pytest.approx(net - report["earned"], abs=0.01)
            assert gain["low"] <= net - report["earned"] <= gain["high"]
        assert one["rows"] == N
        assert one["weights"] is not None
        assert one["weights"]["effective_n"] == pytest.approx(N / 3)
        assert one["shares"] == {**dict.fromkeys(ARMS, 0.0), arm: 1.0}
    uniform = values(of(report, "uniform"))
    assert list(uniform) == ESTIMATORS
    for value in uniform.values():
        assert value["value"] == pytest.approx(report["earned"], abs=0.01)


def test_what_was_served_is_the_baseline_and_has_no_difference(filled: AppConfig, store: Store) -> None:
    served = evaluated(filled, store, "uniform")["candidates"][0]
    assert served["name"] == "served"
    assert differences(served) == {}
    assert served["weights"] is not None
    assert (served["weights"]["largest"], served["weights"]["mean"], served["weights"]["effective_n"]) == (
        1.0,
        1.0,
        N,
    )
    assert values(served)["snips"]["value"] == pytest.approx(sum(NET.values()) / 3)


@pytest.mark.slow
def test_an_interval_of_another_kind_says_so(filled: AppConfig, store: Store) -> None:
    report = evaluated(filled, store, "fixed:dense", estimators=("ips", "snips"), interval="anytime")
    said = "snips: normal interval: anytime does not apply to it."
    assert said in list_remarks(of(report, "fixed:dense"))
    assert make_page(report).count("normal interval: anytime does not apply to it") == 2, (
        "of both, served and fixed"
    )
    one = of(report, "fixed:dense")
    assert {name: value["kind"] for name, value in values(one).items()} == {
        "ips": "anytime",
        "snips": "normal",
    }
    assert {name: gain["kind"] for name, gain in differences(one).items()}["ips"] == "anytime"
    headline = find_headline(one)
    assert headline is not None
    assert headline["estimator"] == "ips", "though snips comes first: its interval is not the one asked for"
    usual = of(evaluated(filled, store, "fixed:dense", estimators=("ips",)), "fixed:dense")
    anytime, normal = (values(found)["ips"] for found in (one, usual))
    assert anytime["high"] - anytime["low"] > normal["high"] - normal["low"], (
        "to hold at every number of rows"
    )


def test_any_candidate_can_be_the_baseline(filled: AppConfig, store: Store) -> None:
    report = evaluated(filled, store, "fixed:dense", baseline="fixed:bm25")
    assert [one["name"] for one in report["candidates"]] == ["fixed:bm25", "fixed:dense"]
    gains = differences(of(report, "fixed:dense"))
    assert list(gains) == ESTIMATORS
    for gain in gains.values():
        assert gain["value"] == pytest.approx(NET["dense"] - NET["bm25"], abs=0.02)


def test_doubtful_weights_of_a_baseline_are_shown_unless_it_was_served(
    config: AppConfig, store: Store
) -> None:
    store.append([fact for number in range(8) for fact in turn(number, ("bm25", "dense")[number % 2])])
    join(store, config)
    report = evaluated(config, store, "served", "fixed:dense", baseline="fixed:bm25", estimators=("ips",))
    weights = {one["name"]: one["weights"] for one in report["candidates"]}
    warned = {name: bool(found and found["warnings"]) for name, found in weights.items()}
    assert warned == {"fixed:bm25": True, "served": False, "fixed:dense": True}


@pytest.mark.parametrize("estimators", [("ips",), ("ips", "snips", "dr")])
def test_a_context_that_cannot_be_read_costs_its_row_alone(
    filled: AppConfig, store: Store, estimators: tuple[str, ...]
) -> None:
    with store.writing() as connection:
        connection.execute(sa.text("UPDATE decisions SET features = '{' WHERE id IN ('d-50', 'd-239')"))
    report = evaluated(filled, store, "uniform", "policy:{kind: uniform}", estimators=estimators, gate=True)
    assert (report["rows"], report["excluded"]) == (N - 2, {"forced": 5, "cannot be read": 2})
    for one in report["candidates"]:
        assert (one["rows"], list(values(one))) == (N - 2, list(estimators))


@pytest.mark.slow
def test_a_candidate_never_drawn_has_no_value(config: AppConfig, store: Store) -> None:
    store.append([fact for number in range(8) for fact in turn(number, ("bm25", "dense")[number % 2])])
    join(store, config)
    report = evaluated(config, store)
    never = of(report, "fixed:none")
    assert {(one["value"], one["note"]) for one in never["estimates"]} == {(None, "never drawn")}
    assert never["weights"] is None
    assert all(values(one) for one in report["candidates"] if one["name"] != "fixed:none")
    assert "never drawn" in make_page(report)


def test_one_question_alone_is_estimated_without_a_reward_model(config: AppConfig, store: Store) -> None:
    store.append(turn(0, "dense"))
    join(store, config)
    report = evaluated(config, store, "uniform")
    (*plain, doubly) = of(report, "uniform")["estimates"]
    assert [one["estimator"] for one in plain if one["value"] is not None] == ["ips", "snips"]
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    assert doubly["value"] is None
    assert "needs two different questions" in doubly["note"]


def test_what_was_not_learned_is_counted_by_reason(filled: AppConfig, store: Store) -> None:
    failed, quiet = turn(1000, "bm25"), turn(1001, "bm25")
    failed[1] = replace(failed[1], status=Status.ARM_FAILED)
    store.append([*failed, *quiet[:2], *turn(1002, "none", Mode.GREEDY)])
    store.append([Tick(30_000.0)])
    join(store, filled)
    report = evaluated(filled, store, "uniform")
    assert report["rows"] == N
    assert report["excluded"] == {"forced": 5, "arm failed": 1, "greedy": 1, "no reward": 1}
    assert "Left out: 5 forced, 1 arm failed, 1 greedy, 1 no reward." in list_footnotes(report)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_report(filled: AppConfig, store: Store) -> None:
    first, second = (evaluated(filled, store, interval="bootstrap", seed=3) for _ in range(2))
    assert first == {**second, "made_at": first["made_at"]}
    assert first["candidates"] != evaluated(filled, store, interval="bootstrap", seed=4)["candidates"]


def test_candidates_learn_rewards_without_what_caches_lacked(
    config: AppConfig, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = config.reward.model_copy(update={"cost": Prices(steps=0.0, usd=1.0), "cost_weight": 1.0})
    config = config.model_copy(update={"reward": rule})
    facts = []
    for number, drawn in enumerate(mix(np.repeat(ARMS, 10))):
        decision, execution, *rest = turn(number, drawn)
        missed = change(decision, miss_costs=(0.0, 0.125, 0.25), usd_weight=1.0)
        facts += [missed, replace(execution, cost=replace(execution.cost, usd=0.25)), *rest]
    store.append(facts)
    join(store, config)
    heard: list[tuple[Example, float | None]] = []
    original = PolicyCandidate.replay

    def hear(self: PolicyCandidate, block: Any, arms: Any, rewards: Any) -> Any:
        heard.extend(zip(block, rewards, strict=True))
        return original(self, block, arms, rewards)

    monkeypatch.setattr(PolicyCandidate, "replay", hear)
    report = evaluated(config, store, "configured")
    assert report["rows"] == len(heard) == 30
    for example, reward in heard:
        assert reward == rule.compute_learned_reward(example)
    assert sum(reward != rule.compute_reward(example) for example, reward in heard) == 20


def test_a_candidate_ends_as_the_policy_that_the_learner_trains(
    config: AppConfig, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = config.reward.model_copy(update={"cost": Prices(steps=0.0, usd=1.0), "cost_weight": 1.0})
    spec = PolicySpec(kind="adaptive")
    config = config.model_copy(update={"reward": rule, "policy": spec})
    facts = []
    for number, drawn in enumerate(mix(np.repeat(ARMS, 20))):
        decision, execution, *rest = turn(number, drawn)
        facts += [
            decision,
            replace(execution, cost=replace(execution.cost, usd=0.1 * ARMS.index(drawn))),
            *rest,
        ]
    store.append(facts)
    join(store, config)
    replayed: list[Policy] = []
    original = PolicyCandidate.replay

    def keep(self: PolicyCandidate, *told: Any) -> Any:
        replayed.append(self.policy)
        return original(self, *told)

    monkeypatch.setattr(PolicyCandidate, "replay", keep)
    evaluated(config, store, "configured")
    trained = build_policy(spec, ARMS)
    train_on(trained, rule, read_learned_examples(store, rule))
    assert replayed[-1].save() == trained.save()


def test_a_log_without_examples_is_refused(config: AppConfig, store: Store) -> None:
    with pytest.raises(EvaluationError, match="the training log is empty"):
        evaluated(config, store)


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        ({"until": "1970-01-01T00:01:00Z"}, N),
        ({"versions": (2, 2)}, 100),
        ({"versions": (2, 9)}, 140),
        ({"features": {"side": "left"}}, N // 2),
        ({"features": {"w=river": 1.0, "side": "left"}, "versions": (1, 1)}, 50),
    ],
)
def test_only_what_is_selected_is_judged(
    filled: AppConfig, store: Store, asked: dict[str, Any], kept: int
) -> None:
    report = evaluated(filled, store, "fixed:dense", **asked)
    assert report["rows"] == kept
    assert sum(report["excluded"].values()) == (5 if kept == N and "until" not in asked else N - kept)
    assert values(of(report, "fixed:dense"))["snips"]["value"] == pytest.approx(NET["dense"])


@pytest.mark.parametrize(
    ("asked", "paid"),
    [
        ({"cost_weight": 0.0}, 0.0),
        ({"cost_weight": 0.3}, 0.6),
        ({"cost": {"steps": 0.5}}, 0.1),
        ({"cost_weight": 0.2, "cost": {"steps": 2.0}}, 0.8),
    ],
)
def test_changed_prices_score_the_same_log_again(
    filled: AppConfig, store: Store, asked: dict[str, Any], paid: float
) -> None:
    report = evaluated(filled, store, "fixed:dense", **asked)
    scored = values(of(report, "fixed:dense"))
    assert list(scored) == ESTIMATORS
    for value in scored.values():
        assert value["value"] == pytest.approx(TRUTH["dense"] - paid, abs=0.02)
    assert report["reward"]["cost_weight"] == asked.get("cost_weight", 0.1)


@pytest.mark.parametrize(
    ("name", "asked", "said"),
    [
        ("fixed:bm52", {}, "'fixed:bm52'.*never eligible.*bm25"),
        ("version:1", {}, "no version 1"),
        ("fixed:dense", {"baseline": "shadow"}, "baseline 'shadow': 240 no shadow on record"),
        ("fixed:dense", {"since": "2020-01-01T00:00:00Z"}, "since 2020-01-01.*has 240 from 1970"),
    ],
)
def test_what_the_log_cannot_answer_is_refused(
    filled: AppConfig, store: Store, name: str, asked: dict[str, Any], said: str
) -> None:
    with pytest.raises((CandidateError, EvaluationError), match=said):
        evaluated(filled, store, name, **asked)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"estimators": ["best"]}, "unknown estimator 'best'; available: ips, snips"),
        ({"interval": "wide"}, "unknown interval 'wide'; available: normal"),
        ({"since": "2026-02-01T00:00:00Z", "until": "2026-01-01T00:00:00Z"}, "must be before until"),
        ({"since": 20260201.5}, "is not a date such as 2026-05-01"),
        ({"versions": (0, 3)}, "the first must be at least 1"),
        ({"versions": (5, 3)}, "not above the last"),
        ({"versions": (1, 10_001)}, "versions 1 to 10001: at most 10,000; select a window instead"),
        ({"candidates": [f"fixed:{n:01994}" for n in range(10)]}, "at most 20,000 are allowed"),
        ({"cost_weight": -1.0}, "greater than or equal to 0"),
        ({"cost": {"stepz": 1.0}}, "steps"),
        ({"cost": {"steps": float("inf")}}, "finite"),
        ({"features": {"age": float("nan")}}, "finite"),
        ({"candidates": ["uniform", "uniform"]}, "named twice"),
        ({"estimators": ["ips", "dr", "ips"]}, "an estimator is named twice"),
        ({"candidate": ["uniform"]}, "Extra inputs"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        EvaluationRequest(**asked)


@pytest.mark.parametrize(
    "asked",
    [
        {"versions": (1, 10_000)},
        {"candidates": [f"fixed:{n:01994}" for n in range(9)] + [f"fixed:{9:01988}"]},
        {"candidates": [f"fixed:{n}" for n in range(100)]},
    ],
    ids=["versions", "characters", "candidates"],
)
def test_a_request_of_the_largest_size_is_taken(asked: dict[str, Any]) -> None:
    EvaluationRequest.model_validate(asked)


def test_a_fixed_arm_is_evaluated_where_it_could_have_been_drawn(config: AppConfig, store: Store) -> None:
    two, three = enumerate(mix(np.repeat(ARMS[:2], 30))), enumerate(mix(np.repeat(ARMS, 10)), 60)
    facts = [fact for n, drawn in two for fact in turn(n, drawn, eligible=ARMS[:2])]
    store.append([*facts, *(fact for n, drawn in three for fact in turn(n, drawn))])
    join(store, config)
    report = evaluated(config, store, "fixed:dense", "fixed:bm25")
    dense, bm25 = of(report, "fixed:dense"), of(report, "fixed:bm25")
    assert (dense["rows"], bm25["rows"]) == (30, 90)
    assert dense["excluded"] == {"the arm could not have been drawn": 60}
    assert values(dense)["snips"]["value"] == pytest.approx(NET["dense"])
    assert differences(dense)["snips"]["value"] == pytest.approx(NET["dense"] - sum(NET.values()) / 3), (
        "what was served is compared on the same rows"
    )


@pytest.mark.slow
def test_a_candidate_that_no_row_is_left_for_says_why_and_is_held(filled: AppConfig, store: Store) -> None:
    shadow = of(evaluated(filled, store, "shadow", gate=True), "shadow")
    assert (shadow["rows"], shadow["estimates"]) == (0, [])
    assert shadow["excluded"] == {"no shadow on record": N}
    assert shadow["verdict"] is not None
    assert shadow["verdict"]["promote"] is False
    assert shadow["verdict"]["reasons"] == [f"No decision is left to judge it by: {N} no shadow on record."]


def served_by(
    store: Store, config: AppConfig, turns: int, tampered: Sequence[int] = (), share: float = 0.0
) -> None:
    """Fill a log as a service would: a policy draws, a learner publishes.

    Args:
        store: The log.
        config: Names the policy.
        turns: How many questions are asked.
        tampered: Decisions whose probabilities are not those that the policy gave.
        share: Of the first version, which goes on as a canary.
    """
    learner = Learner(store, Recipe.from_config(config), ARMS, take_epoch(store, "test", 0.0))
    for first in range(0, turns, turns // 4):
        version = learner.step()
        assert version is not None
        policy, canary = (
            Recipe.from_config(config).build(ARMS).load(versions.checkpoint(store, number) or b"")
            for number in (version.version, 1)
        )
        facts = []
        for number in range(first, first + turns // 4):
            decision, *_ = turn(number, "none")
            p, other = (
                compute_served_distribution(one, decision.context, ARMS, config.explores.among(len(ARMS)))
                for one in (policy, canary)
            )
            p = sampling.mix_canary(p, other, share)
            drawn = ARMS[choose(p, sampling.uniform_from(decision.id, "armwise", ARMS))]
            if number in tampered:
                p = 0.9 * p + 0.1 / 3
            mine, execution, said = turn(number, drawn)
            told = {
                "probabilities": tuple(p.tolist()),
                "policy": policy.kind,
                "floor": config.explores.among(len(ARMS)),
            }
            told |= {"candidate": 1, "share": share} if share else {}
            facts += [change(mine, version=version.version, **told), execution, said]
        store.append(facts)
    learner.step()


@pytest.fixture
def exploring(config: AppConfig) -> AppConfig:
    """A service whose policy draws every arm alike, and may be verified."""
    return config.model_copy(update={"policy": PolicySpec(kind="uniform")})


@pytest.mark.slow
def test_the_gate_lets_a_better_candidate_go_live(exploring: AppConfig, store: Store) -> None:
    served_by(store, exploring, 800)
    report = evaluated(exploring, store, "fixed:dense", "fixed:none", gate=True)
    better, worse = (of(report, f"fixed:{arm}")["verdict"] for arm in ("dense", "none"))
    assert better is not None
    assert worse is not None
    assert (better["verdict"], better["reasons"]) == ("promote", [])
    assert better["figures"]["checked"] == 200
    assert better["figures"]["mismatched"] == 0
    assert worse["verdict"] == "hold"
    assert "does not look better" in " ".join(worse["reasons"])
    assert of(report, "served")["verdict"] is None
    assert json.loads(json.dumps(report, allow_nan=False)) == report


def with_canaries(store: Store, config: AppConfig, turns: int) -> tuple[int, int]:
    """Fill a log whose decisions have one candidate, another, or none, in turn; return their versions.

    Decisions with a candidate have a quarter of the floor. Before the candidates there are 40 turns.
    """
    served_by(store, config, 40)
    recipes = [
        Recipe(PolicySpec(kind="fixed", params={"arm": arm}), config.reward) for arm in ("dense", "none")
    ]
    first, second = (publish_candidate(store, recipe, list(ARMS)).version for recipe in recipes)
    facts = []
    for number in range(40, 40 + turns):
        candidate, preferred = ((first, 2), (second, 0), (0, 1))[number % 3]
        floor = config.explores.among(len(ARMS)) / (4 if candidate else 1)
        live = sampling.mix_floor(np.full(3, 1 / 3), floor)
        p = sampling.mix_canary(
            live, sampling.mix_floor(np.eye(3)[preferred], floor), 0.25 if candidate else 0.0
        )
        drawn = ARMS[choose(p, sampling.uniform_from(f"d-{number}", "armwise", ARMS))]
        decision, execution, said = turn(number, drawn)
        told: dict[str, Any] = {"probabilities": tuple(p.tolist()), "policy": "uniform", "floor": floor}
        told |= {"candidate": candidate, "share": 0.25} if candidate else {}
        facts += [change(decision, version=1, decided_at=1.0 + number / turns, **told), execution, said]
    store.append(facts)
    join(store, config)
    return first, second


@pytest.mark.slow
def test_a_canary_is_judged_where_it_took_part(exploring: AppConfig, store: Store) -> None:
    config = exploring.model_copy(update={"floor": 0.08})
    first, second = with_canaries(store, config, 900)
    for number, best in ((first, "dense"), (second, "none")):
        report = evaluated(config, store, f"canary:{number}", gate=True)
        canary = of(report, f"canary:{number}")
        assert canary["rows"] == 300
        assert canary["excluded"] == {"the candidate version took no part": 600}
        assert canary["shares"][best] == pytest.approx(1.0 - 2 * 0.02)
        assert canary["weights"] is not None
        assert canary["weights"]["largest"] == pytest.approx(0.96 / (0.25 * 0.96 + 0.75 / 3))
        assert report["rows"] == 900, "what is before it is not even read"
        assert report["excluded"] == {"before the canary began": 40}
        verdict = canary["verdict"]
        assert verdict is not None
        assert (verdict["figures"]["n"], verdict["figures"]["mismatched"]) == (300, 0)
        assert verdict["figures"]["overlap"] == pytest.approx(1.0)
        assert verdict["promote"] == (best == "dense")
    both = evaluated(config, store, f"canary:{first}", f"canary:{second}", "served", gate=True)
    assert [of(both, f"canary:{number}")["rows"] for number in (first, second)] == [300, 300]
    assert both["rows"] == 940


@pytest.mark.parametrize(
    ("baseline", "after"), [("served", 7), ("configured", 0), ("policy:{kind: linucb}", 0)]
)
def test_a_log_is_read_from_its_canaries_on_unless_the_baseline_learns(baseline: str, after: int) -> None:
    version = SimpleNamespace(examples_seq=7)
    service: Any = SimpleNamespace(version=lambda _: (3, version))
    request = EvaluationRequest(candidates=("canary:3",), baseline=baseline)
    assert read_selection(request, service).after == after


@pytest.mark.slow
def test_the_share_of_a_canary_cuts_the_permitted_loss(exploring: AppConfig, store: Store) -> None:
    config = exploring.model_copy(update={"floor": 0.08, "gate": GateSpec(margin=-0.2)})
    first, _ = with_canaries(store, config, 300)
    canary = of(evaluated(config, store, f"canary:{first}", gate=True), f"canary:{first}")["verdict"]
    frozen = of(evaluated(config, store, f"version:{first}", gate=True), f"version:{first}")["verdict"]
    assert canary is not None
    assert frozen is not None
    assert canary["canary_share"] == 0.25
    assert canary["figures"]["margin"] == pytest.approx(-0.2 * 0.75)
    assert "canary_share" not in frozen
    assert frozen["figures"]["margin"] == -0.2
    strict = config.model_copy(update={"gate": GateSpec(margin=0.2)})
    found = of(evaluated(strict, store, f"canary:{first}", gate=True), f"canary:{first}")["verdict"]
    assert found is not None
    assert found["figures"]["margin"] == 0.2


@pytest.mark.slow
def test_the_bounds_of_a_canary_use_the_rewards_known_when_it_decided(
    exploring: AppConfig, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = exploring.model_copy(update={"floor": 0.08})
    first, _ = with_canaries(store, config, 90)
    known: list[Any] = []

    def judged(spec: Any, log: Any, p: Any, **given: Any) -> Any:
        known.append(given)
        return judge(spec, log, p, **given)

    monkeypatch.setattr("armwise.agent.evaluation.replay_log.judge", judged)
    evaluated(config, store, f"canary:{first}", gate=True)
    (given,) = known
    assert set(given["known"].tolist()) == {0}, "version 1 had learned nothing"


@pytest.mark.slow
def test_the_gate_notices_changed_propensities(exploring: AppConfig, store: Store) -> None:
    policy = PolicySpec(kind="fixed", params={"arm": "bm25"})
    settings = exploring.model_copy(update={"policy": policy, "floor": 0.3})
    served_by(store, settings, 800, tampered=range(0, 800, 4))
    verdict = of(evaluated(settings, store, "fixed:dense", gate=True), "fixed:dense")["verdict"]
    assert verdict is not None
    assert verdict["promote"] is False
    assert verdict["figures"]["mismatched"] > 20
    assert "recomputed propensities differ" in " ".join(verdict["reasons"])


@pytest.mark.slow
def test_distributions_that_a_canary_took_part_in_are_computed_again(config: AppConfig, store: Store) -> None:
    learning = config.model_copy(update={"policy": PolicySpec(kind="linucb"), "floor": 0.1})
    served_by(store, learning, 400, share=0.25)
    verdict = of(evaluated(learning, store, "fixed:dense", gate=True), "fixed:dense")["verdict"]
    assert verdict is not None
    assert (verdict["figures"]["checked"], verdict["figures"]["mismatched"]) == (200, 0)


@pytest.mark.slow
def test_as_many_versions_are_computed_again_as_it_takes(
    config: AppConfig, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("armwise.agent.evaluation.recompute.VERSIONS", 1)
    learning = config.model_copy(update={"policy": PolicySpec(kind="linucb"), "floor": 0.1})
    served_by(store, learning, 400)  # a hundred decisions a version
    verdict = of(evaluated(learning, store, "fixed:dense", gate=True), "fixed:dense")["verdict"]
    assert verdict is not None
    assert verdict["figures"]["checked"] == 200


@pytest.mark.slow
def test_a_log_of_versions_that_are_not_there_is_not_recomputed(filled: AppConfig, store: Store) -> None:
    report = evaluated(filled, store, "fixed:dense", gate=True)
    verdict = of(report, "fixed:dense")["verdict"]
    assert verdict is not None
    assert verdict["figures"]["checked"] == 0
    assert verdict["promote"] is False
    assert any("could not be recomputed" in one for one in report["assumptions"])


@pytest.mark.slow
def test_a_log_that_tells_the_drawn_probability_alone_is_judged_by_it(config: AppConfig) -> None:
    examples = []
    for number, drawn in enumerate(mix(np.repeat(ARMS, 30))):
        decision, execution, said = turn(number, drawn)
        alone = replace(decision, arms=(decision.drawn, *(arm for arm in ARMS if arm != decision.drawn)))
        alone = replace(alone, probabilities=(1 / 3,))
        examples.append(Example(number + 1, alone, execution.cost, {"thumb": said.value}))
    request = EvaluationRequest(candidates=("fixed:dense", "uniform", "configured"))
    report = replay(config, request, Examples(examples), None, quietly)
    served, dense, *_ = report["candidates"]
    assert served["rows"] == 0
    assert served["excluded"] == {"only the probability of the drawn arm is on record": 90}
    assert values(dense)["snips"]["value"] == pytest.approx(NET["dense"])
    assert differences(dense)["snips"]["value"] == pytest.approx(NET["dense"] - sum(NET.values()) / 3)
    assert "fixed:dense would have earned" in make_page(report)


# -- the verb ------------------------------------------------------------------------------------


@pytest.fixture
def file(filled: AppConfig, tmp_path: Path) -> Path:
    """A configuration file of a log that is filled."""
    path = tmp_path / "serve_config.yaml"
    path.write_text(
        json.dumps({"applications": [{"name": "a", "args": {**CONFIG, "log_url": filled.log_url}}]})
    )
    return path


@pytest.mark.slow
def test_the_verb_prints_a_table_and_writes_reports(file: Path, tmp_path: Path) -> None:
    words = ["replay", "-c", str(file), "--policy", "fixed:dense", "--price", "steps=0"]
    for name in ("report.json", "report.html"):
        result = CliRunner().invoke(app, [*words, "-o", str(tmp_path / name)])
        assert result.exit_code == 0, result.output
        assert f"{N} logged decisions" in result.output
        assert "fixed:dense" in result.output
    report = json.loads((tmp_path / "report.json").read_text())
    assert values(of(report, "fixed:dense"))["snips"]["value"] == pytest.approx(TRUTH["dense"])
    assert report["reward"]["cost"]["steps"] == 0.0
    assert "fixed:dense" in (tmp_path / "report.html").read_text()


@pytest.mark.slow
def test_an_export_is_replayed_as_the_log_that_it_is_of(file: Path, tmp_path: Path) -> None:
    export = tmp_path / "log.jsonl"
    assert CliRunner().invoke(app, ["log", "export", "-c", str(file), "-o", str(export)]).exit_code == 0
    reports = []
    for name, words in (("log", []), ("export", [str(export)])):
        output = tmp_path / f"{name}.json"
        asked = [
            "replay",
            "-c",
            str(file),
            "--policy",
            "configured",
            "--policy",
            "fixed:dense",
            "-o",
            str(output),
        ]
        result = CliRunner().invoke(app, [*asked, *words])
        assert result.exit_code == 0, result.output
        reports.append(json.loads(output.read_text()))
    first, second = reports
    assert second["source"] == str(export)
    assert second["candidates"] == first["candidates"]
    assert second["digest"] == first["digest"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--policy", "best"], "candidate 'best' is not one of: served, uniform"),
        (["--policy", "linucb"], "did you mean 'policy:{kind: linucb}'?"),
        (["--since", "7w"], "or 7d or 12h for as long ago"),
        (["--policy", "policy:nowhere.yaml"], "No such file"),
        (["--policy", "fixed:bm52"], "that arm was never eligible"),
        (["--since", "yesterday"], "--since 'yesterday' is not a date such as 2026-05-01"),
        (["--since", "2030-01-01"], "no decision can be evaluated"),
        (["--version", "3to4"], "--version '3to4': FROM-TO such as 12-20"),
        (["--version", "9-2"], "versions 9 to 2: the first must be at least 1 and not above the last"),
        (["--feature", "tier"], "--feature 'tier': name=value was expected"),
        (["--price", "steps=cheap"], "--price 'steps=cheap': 'cheap' is not a number"),
        (["--price", "stepz=1"], "stepz"),
        (["--estimator", "best"], "unknown estimator 'best'"),
        (["--interval", "wide"], "unknown interval 'wide'"),
        (["--output", "report.pdf"], "a name that ends with .json or .html was expected"),
        (["nowhere.jsonl"], "nowhere.jsonl"),
    ],
)
def test_the_verb_says_what_is_wrong_and_exits_with_2(file: Path, words: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["replay", "-c", str(file), *words])
    assert result.exit_code == 2, result.output
    assert said in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("cluster", "observations"), [("question", 30), ("episode", 20), ("user", 6), ("none", 60)]
)
def test_rows_that_share_what_the_request_names_are_one_observation(
    config: AppConfig, store: Store, cluster: str, observations: int
) -> None:
    facts = []
    for number in range(60):
        made, *others = turn(number, ARMS[number % 3])
        made = replace(made, context=replace(made.context, question=f"question {number % 30}"))
        facts += [replace(made, episode_id=f"e{number % 20}", user_digest=f"u{number % 6}"), *others]
    store.append(facts)
    join(store, config)
    report = evaluated(config, store, "uniform", cluster=cluster, estimators=("ips",))
    assert (report["rows"], report["observations"]) == (60, observations)


@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.slow
def test_unsettled_decisions_are_in_no_estimate(filled: AppConfig, store: Store, gate: bool) -> None:
    before = evaluated(filled, store, "fixed:dense", gate=gate)
    facts = []
    for number, drawn in enumerate(mix(np.repeat(ARMS, 20)), start=1000):
        made, execution, value = turn(number, drawn)
        facts += [replace(made, decided_at=9_990.0), replace(execution, finished_at=9_991.0)]
        facts += [replace(value, received_at=9_992.0)] * (number % 2)
    store.append(facts)
    join(store, filled)
    after = evaluated(filled, store, "fixed:dense", gate=gate)
    assert (after["rows"], after["earned"]) == (before["rows"], before["earned"]) == (N, before["earned"])
    assert after["excluded"]["may still get feedback"] == 30
    for name in ("estimates", "verdict"):
        assert [one[name] for one in after["candidates"]] == [one[name] for one in before["candidates"]]
    assert any(said.startswith("60 decisions since ") for said in after["assumptions"])


def test_a_log_without_a_settled_decision_is_refused_until_its_wait_time_has_passed(
    config: AppConfig, store: Store
) -> None:
    facts = [fact for n in range(8) for fact in turn(n, "dense")]
    made = [
        replace(one, decided_at=9_990.0)
        if isinstance(one, Decision)
        else replace(one, received_at=9_991.0)
        if isinstance(one, Feedback)
        else one
        for one in facts
    ]
    store.append([Tick(10_000.0), *made, *turn(8, "dense")[:2]])
    join(store, config)
    for gate in (False, True):
        with pytest.raises(EvaluationError, match=r"8 may still get feedback; these count once .*PT30M"):
            evaluated(config, store, "uniform", gate=gate)
