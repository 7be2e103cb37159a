"""InsertSettings labels: they are decisions, entered once, learned by the one door, and no traffic."""

import gzip
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from armwise.agent.cli.main import app
from armwise.agent.config import AppConfig, parse
from armwise.agent.evaluation import EvaluationRequest, replay
from armwise.agent.lab.offline import Scoring, score_arms
from armwise.agent.lab.routers import utilities
from armwise.agent.lab.warmstart import InsertSettings, WarmStartError, label_decisions, make_contexts
from armwise.agent.lab.warmstart import insert_labels as run
from armwise.agent.lab.warmstart.labels import choose_labels, compute_reward, describe_inputs, turns
from armwise.agent.learning import Learner, Recipe
from armwise.agent.policies import (
    FeatureSpec,
    Policy,
    PolicySpec,
    build_policy,
    choose,
    compute_served_distribution,
    describe,
    sampling,
)
from armwise.agent.routers import RouterError
from armwise.arms.lab.portfolio import MatrixArms, Outcomes, read_matrix, write_matrix
from armwise.arms.lab.portfolio import outcomes as portfolio_outcomes
from armwise.arms.profile import Profile
from armwise.arms.questions import Question
from armwise.feedback.errors import LogUnavailableError
from armwise.feedback.events import LABELS, Context, Cost, Decision, Mode
from armwise.feedback.log import Store
from armwise.feedback.registry import versions
from armwise.feedback.reward import Metric, Prices, RewardError, RewardRule
from armwise.feedback.sources import LogSource
from armwise.feedback.training_log import Joiner, label_turns, read_examples, take_epoch, traffic
from tests.agent.asking import join, look_up
from tests.agent.evaluation.test_evaluate import turn
from tests.agent.fakes import CONFIG, DIM, Service

ARMS = ("none", "bm25", "dense")
RULE = RewardRule(metrics={"right": Metric(type="boolean"), "found": Metric()}, cost_weight=0.1)
NAN = float("nan")


def told(
    scores: Mapping[str, Any], costs: Mapping[str, Any] | None = None, arms: Sequence[str] = ARMS
) -> Outcomes:
    """Outcomes of as many questions as the scores have rows; an arm takes as many steps as its place says."""
    tables = {name: np.array(rows, dtype=np.float64) for name, rows in scores.items()}
    n = len(next(iter(tables.values())))
    nothing = ((None,) * len(arms),) * n
    steps = {"steps": np.tile(np.arange(float(len(arms))), (n, 1))} if costs is None else costs
    questions = tuple(Question(f"q{row}", f"What is {row}?") for row in range(n))
    return Outcomes(questions, tuple(arms), tables, steps, nothing, nothing)


def seen(outcomes: Outcomes) -> list[Context]:
    return [describe(question.text, FeatureSpec(words=0)) for question in outcomes.questions]


def entered(outcomes: Outcomes, rule: RewardRule = RULE, **options: Any) -> list[label_turns.LabelTurn]:
    metrics = options.pop("metrics", {"right": "em"})
    labels = choose_labels(outcomes, rule, metrics, options.pop("arms", ARMS), **options)
    return list(turns(labels, seen(outcomes), clock=lambda: 5.0))


# -- labels as decisions ----------------------------------------------------------------------------------


def test_a_label_is_a_uniform_draw_among_the_arms_that_are_known() -> None:
    outcomes = told({"em": [[1.0, NAN, 0.0]]}, {"steps": np.array([[0.0, 1.0, 1.6]])})
    outcomes = replace(outcomes, passages=(((), None, ("p7", "p2")),), answers=(("She.", None, "He."),))
    by_arm = {one.decision.drawn: one for one in entered(outcomes)}
    assert by_arm.keys() == {"none", "dense"}
    one = by_arm["dense"]
    assert one.decision == Decision(
        id=one.decision.id,
        context=seen(outcomes)[0],
        arms=("none", "dense"),
        probabilities=(0.5, 0.5),
        drawn="dense",
        policy=LABELS,
        version=0,
        mode=Mode.EXPLORE,
        decided_at=5.0,
        deadline=5.0,
    )
    assert (one.execution.served, one.execution.answer, one.execution.passages) == (
        "dense",
        "He.",
        ("p7", "p2"),
    )
    assert one.execution.cost == Cost(steps=2), "a mean is rounded, as the log counts whole steps"
    assert [(said.metric, said.value) for said in one.feedback] == [("right", 0.0)]
    assert compute_reward(one, RULE) == pytest.approx(-0.2)


@given(st.lists(st.lists(st.sampled_from([0.0, 1.0, NAN]), min_size=3, max_size=3), min_size=1, max_size=6))
def test_weighted_labels_give_the_truth_of_each_arm(
    scores: list[list[float]],
) -> None:
    known = ~np.isnan(scores)
    if not known.any():
        return
    free = RULE.model_copy(update={"cost_weight": 0.0})
    found: dict[str, list[tuple[Decision, float]]] = {}
    outcomes = told({"em": scores})
    for decision, reward in label_decisions(outcomes, seen(outcomes), free, {"right": "em"}, ARMS):
        found.setdefault(decision.context.question, []).append((decision, reward))
    for row, question in enumerate(outcomes.questions):
        draws = found.get(question.text, [])
        assert len(draws) == known[row].sum()
        for arm, truth in zip(ARMS, scores[row], strict=True):
            weights = [reward / one.propensity for one, reward in draws if one.drawn == arm]
            if not np.isnan(truth):
                assert sum(weights) / len(draws) == pytest.approx(truth)


@pytest.mark.parametrize(
    "change",
    [
        {"questions": (Question("q9", "What is 0?"),)},
        {"questions": (Question("q0", "What else?"),)},
        {"scores": {"em": np.array([[0.0, 1.0, 1.0]])}},
        {"costs": {"steps": np.array([[7.0, 1.0, 2.0]])}},
        {"passages": ((("p1",), None, None),)},
        {"answers": (("She.", None, None),)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_an_outcome_that_differs_in_one_fact_is_another_label(change: dict[str, Any]) -> None:
    outcomes = told({"em": [[1.0, 1.0, 1.0]]}, {"steps": np.array([[0.0, 1.0, 1.0]])})
    ids = {label.decision.id for label in entered(outcomes)}
    assert {label.decision.id for label in entered(outcomes)} == ids
    assert not {label.decision.id for label in entered(replace(outcomes, **change))} >= ids


def test_labels_of_two_arms_with_the_same_outcome_are_two() -> None:
    outcomes = told({"em": [[1.0, 1.0, 1.0]]}, {"steps": np.ones((1, 3))})
    assert len({label.decision.id for label in entered(outcomes)}) == 3


def test_the_seed_gives_the_order_in_which_no_arm_comes_in_a_block() -> None:
    outcomes = told({"em": np.zeros((100, 3))})
    ids, others = ([label.decision.id for label in entered(outcomes, seed=seed)] for seed in (0, 1))
    assert ids == [label.decision.id for label in entered(outcomes, seed=0)]
    assert ids != others
    assert sorted(ids) == sorted(others)
    first = [label.decision.drawn for label in entered(outcomes)[:100]]
    assert all(20 < first.count(arm) < 47 for arm in ARMS)


def test_an_arm_that_lacks_what_another_one_was_measured_by_is_not_entered() -> None:
    em = [[1.0, 0.0, NAN], [1.0, 1.0, 1.0], [NAN, NAN, NAN]]
    recall = [[0.5, 0.5, 0.5], [NAN, NAN, NAN], [NAN, NAN, NAN]]
    labels = choose_labels(told({"em": em, "recall": recall}), RULE, {"right": "em", "found": "recall"}, ARMS)
    assert labels.known.tolist() == [[True, True, False], [True, True, True], [False, False, False]]
    assert labels.left_out == {"without a score": 4}


def test_a_cost_that_has_a_price_must_be_known_and_any_other_need_not() -> None:
    steps = {"steps": np.array([[0.0, NAN, 1.0]])}
    labels = choose_labels(told({"em": [[1.0, 1.0, NAN]]}, steps), RULE, {"right": "em"}, ARMS)
    assert labels.known.tolist() == [[True, False, False]]
    assert labels.left_out == {"without a score": 1, "without steps, which have a price": 1}
    free = RULE.model_copy(update={"cost_weight": 0.0})
    assert choose_labels(told({"em": [[1.0, 1.0, NAN]]}, {}), free, {"right": "em"}, ARMS).known.sum() == 2


def test_the_costs_of_a_score_matrix_are_those_of_the_log_under_other_names() -> None:
    costs = {name: np.full((1, 3), value) for name, value in {"tokens": 7.0, "seconds": 0.5}.items()}
    free = RULE.model_copy(update={"cost_weight": 0.0})
    assert entered(told({"em": [[1.0, 1.0, 1.0]]}, costs), free)[0].execution.cost == Cost(
        prompt_tokens=7, retrieval_s=0.5
    )


@pytest.mark.parametrize(
    ("price", "costs", "message"),
    [
        ("kilotokens", {"prompt_tokens": 9.0}, "at 0 for these labels, or add prompt_tokens and completion"),
        ("seconds", {"retrieval_s": 9.0}, "price seconds at 0 for these labels, or add retrieval_s and"),
        ("seconds", {}, "3 without seconds, which have a price; price seconds at 0"),
    ],
)
def test_priced_costs_must_be_known_in_full(price: str, costs: dict[str, float], message: str) -> None:
    rule = RULE.model_copy(update={"cost": Prices.model_validate({"steps": 0.0, price: 1.0})})
    some = {name: np.full((1, 3), value) for name, value in costs.items()}
    with pytest.raises(WarmStartError, match=message):
        entered(told({"em": [[1.0, 1.0, 1.0]]}, some), rule)


@pytest.mark.parametrize(
    ("costs", "cost"),
    [
        ({"seconds": 2.0, "llm_s": 1.5}, Cost(retrieval_s=2.0)),
        ({"seconds": 2.0, "retrieval_s": 0.5, "llm_s": 1.5}, Cost(retrieval_s=0.5, llm_s=1.5)),
        ({"seconds": 2.0, "total_tokens": 40.0, "prompt_tokens": 30.0}, Cost(0, 40, 0, 2.0)),
    ],
)
def test_a_label_costs_what_training_charges_for_it(costs: dict[str, float], cost: Cost) -> None:
    prices = Prices(steps=0.0, seconds=1.0, kilotokens=10.0 if "total_tokens" in costs else 0.0)
    rule = RULE.model_copy(update={"cost": prices})
    outcomes = told({"em": [[1.0, 1.0, 1.0]]}, {name: np.full((1, 3), told) for name, told in costs.items()})
    (one, *_) = entered(outcomes, rule)
    assert one.execution.cost == cost
    assert prices.total(one.execution.cost) == pytest.approx(utilities.price_costs(outcomes, prices)[0, 0])


def test_labels_of_one_arm_tell_what_it_earns_and_leave_no_choice() -> None:
    (label,) = entered(told({"em": [[1.0]]}, {"steps": np.zeros((1, 1))}, ["bm25"]))
    assert (label.decision.arms, label.decision.probabilities) == (("bm25",), (1.0,))


@pytest.mark.parametrize(
    ("scores", "options", "error", "message"),
    [
        ({"em": [[1.0] * 3]}, {"metrics": {"wrong": "em"}}, RewardError, "'wrong' is not declared"),
        ({"em": [[1.0] * 3]}, {"metrics": {"right": "f1"}}, WarmStartError, "'right' is to get 'f1'"),
        ({"f1": [[0.5] * 3]}, {"metrics": {"right": "f1"}}, RewardError, "boolean: 0.5 is neither"),
        ({"em": [[1.0] * 3]}, {"arms": ["rrf"]}, WarmStartError, "no labelled arm .none, bm25, dense. is"),
        ({"em": [[NAN] * 3]}, {}, WarmStartError, "no label of .* is left: 3 without a score"),
    ],
)
def test_labels_that_teach_nothing_are_refused(
    scores: dict[str, Any], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        entered(told(scores), **options)


# -- what it is for ---------------------------------------------------------------------------------------

KINDS = ("Who was king number {}?", "How many rivers does land {} have?", "river {}", "Tell me of town {}.")
BEST = np.array([2, 0, 1, 2])
"""Which arm is good at each kind of question: it is right in 8 of 10 cases, the others in 3."""


def world(n: int, seed: int) -> Outcomes:
    rng = np.random.default_rng(seed)
    kinds = rng.integers(len(KINDS), size=n)
    right = rng.random((n, 3)) < np.where(np.arange(3) == BEST[kinds][:, None], 0.8, 0.3)
    outcomes = told({"em": right})
    texts = [KINDS[kind].format(f"{seed}-{row}") for row, kind in enumerate(kinds)]
    return replace(outcomes, questions=tuple(Question(text, text) for text in texts))


def earned(policy: Policy, seed: int) -> float:
    """Return the mean reward of the first 300 decisions of a policy that learns as it goes."""
    outcomes, rewards = world(300, seed), []
    for row, context in enumerate(seen(outcomes)):
        p = compute_served_distribution(policy, context, ARMS, 0.01)
        drawn = choose(p, sampling.uniform_from(f"{seed}-{row}", "salt"))
        rewards.append(float(outcomes.scores["em"][row, drawn]))
        decision = Decision(f"d-{row}", context, ARMS, tuple(p.tolist()), ARMS[drawn], policy.kind, 1)
        policy.learn(decision, rewards[-1])
    return float(np.mean(rewards))


@pytest.mark.parametrize("kind", ["vowpal", "linucb"])
@pytest.mark.slow
def test_a_policy_that_was_warmed_up_by_a_hundred_questions_beats_a_cold_one(kind: str) -> None:
    free = RULE.model_copy(update={"cost_weight": 0.0})
    cold, warm = [], []
    for seed in range(3):
        policies = [build_policy(PolicySpec(kind=kind), ARMS) for _ in range(2)]
        labelled = world(100, 100 + seed)
        for decision, reward in label_decisions(labelled, seen(labelled), free, {"right": "em"}, ARMS):
            policies[1].learn(decision, reward)
        cold.append(earned(policies[0], seed))
        warm.append(earned(policies[1], seed))
    assert np.mean(warm) > np.mean(cold) + 0.05
    assert np.mean(warm) > 0.74, "of 0.8 that the best arm of each question earns"


# -- into the log -----------------------------------------------------------------------------------------


@pytest.fixture
def config(tmp_path: Path) -> AppConfig:
    return parse({**CONFIG, "log_url": f"sqlite:///{tmp_path / 'log.db'}"})


def outcomes_file(folder: Path, n: int = 30, arms: Sequence[str] = ARMS) -> Path:
    """Write what arms did on questions; dense is right, and finds what it looks for."""
    rng = np.random.default_rng(n)
    path = folder / "outcomes.jsonl"
    portfolio_outcomes.write_outcomes(
        path,
        [
            portfolio_outcomes.Outcome(
                Question(f"q{row}", f"question {row}"),
                arm,
                (f"{arm}-1",),
                "yes",
                {"em": float(arm == "dense"), "recall": round(float(rng.random()), 3)},
                {"steps": ARMS.index(arm) if arm in ARMS else 1},
            )
            for row in range(n)
            for arm in arms
        ],
    )
    return path


def warmed(config: AppConfig, outcomes: Path, **fields: Any) -> str:
    """Run, and return what was printed."""
    output = StringIO()
    fields.setdefault("metrics", {"right": "em"})
    settings = InsertSettings.model_validate({"config": config, "outcomes": outcomes, **fields})
    run(settings, Console(file=output, width=120), lambda *_: None)
    return output.getvalue()


def learner(store: Store, config: AppConfig, clock: Callable[[], float]) -> Learner:
    return Learner(store, Recipe.from_config(config), ARMS, take_epoch(store, "test", 0.0), clock)


def learned(store: Store, rule: RewardRule) -> list[str]:
    return [example.decision.id for example in read_examples(store, rule.join)]


def test_labels_are_entered_once(config: AppConfig, store: Store, tmp_path: Path) -> None:
    path = outcomes_file(tmp_path)
    assert "90 labels of 3 arms on 30 questions: 90 would be new, 0 in" in warmed(config, path, dry_run=True)
    assert store.counts()["decisions"] == 0
    entered = warmed(config, path)
    assert "90 labels of 3 arms on 30 questions: 90 new, 0 in the log before" in entered
    assert "without any label" not in entered
    before = store.counts()
    assert (before["decisions"], before["executions"], before["feedback"]) == (90, 90, 90)
    assert "90 labels of 3 arms on 30 questions: 0 new, 90 in the log before" in warmed(config, path)
    assert "90 labels of 3 arms on 30 questions: 0 new" in warmed(config, path, seed=9)
    assert store.counts() == before
    more = outcomes_file(tmp_path, 30, [*ARMS, "rrf"])
    assert "0 new, 90 in the log before" in warmed(config, more), "an arm more leaves the others as they are"


def test_actions_without_a_label_are_named(config: AppConfig, tmp_path: Path) -> None:
    told = warmed(config, outcomes_file(tmp_path, 2, ["bm25"]))
    assert "without any label: none, dense\n" in told


def test_texts_of_labels_are_redacted(config: AppConfig, store: Store, tmp_path: Path) -> None:
    privacy = {"redact": [{"name": "number", "pattern": r"question \d", "replacement": "[number]"}]}
    warmed(parse({**config.model_dump(mode="json"), "privacy": privacy}), outcomes_file(tmp_path, 2))
    assert {decision.context.question for decision in label_decisions_of(store)} == {"[number]"}


def label_decisions_of(store: Store, *runs: int) -> list[Decision]:
    """Return the labels of some runs and of none."""
    found = (store.record(name) for name in traffic.label_ids(store, runs, RULE.join))
    return [one.decision for one in found if one is not None]


def test_a_run_enters_labels_new_to_its_candidate(config: AppConfig, store: Store, tmp_path: Path) -> None:
    path = outcomes_file(tmp_path, 2)
    assert "6 new, 0 in the log before" in warmed(config, path, run=1)
    assert "0 new, 6 in the log before" in warmed(config, path, run=2, beside={"runs": [1]})
    assert "6 new, 0 in the log before" in warmed(config, path, run=3, beside={"runs": [2]})
    ids = sorted(traffic.label_ids(store, (1, 3), RULE.join))
    assert len(ids) == 12
    assert {one.partition(".")[2] for one in ids} == {"1", "3"}


def test_questions_that_are_described_anew_are_labels_anew(config: AppConfig, tmp_path: Path) -> None:
    path = outcomes_file(tmp_path)
    warmed(config, path)
    other = config.model_copy(update={"features": FeatureSpec(words=0)})
    assert "90 new, 0 in the log before" in warmed(other, path)


PROFILE = Profile(np.ones(1, dtype=np.uint32), np.ones(1, dtype=np.float32), np.eye(2, dtype=np.float32))


@pytest.mark.parametrize(
    "changes",
    [
        {"backbones": {"tiny": {"model": "hashing:48"}}},
        {"backbones": {"tiny": {"model": f"hashing:{DIM}", "query_prefix": "query: "}}},
        {"arms": {**CONFIG["arms"], "bm25": {"kind": "rrf", "params": {"arms": ["dense", "none"]}}}},
        {"features": {"embedding": {"backbone": "tiny", "dims": 4}, "similarity": {"backbone": "tiny"}}},
    ],
)
def test_another_encoder_or_arm_makes_new_labels(
    changes: dict[str, Any],
) -> None:
    first = {**CONFIG, "features": {"embedding": {"backbone": "tiny", "dims": 4}}}
    assert describe_inputs(parse(first)) == describe_inputs(parse(first))
    profiles = {"bm25": [PROFILE]} if "features" in changes else {}
    assert (
        describe_inputs(parse(first))["bm25"]
        != describe_inputs(parse({**first, **changes}), profiles)["bm25"]
    )


def test_labels_of_an_arm_are_the_same_whatever_the_others_are() -> None:
    before, fewer = describe_inputs(parse(CONFIG)), {**CONFIG["arms"]}
    del fewer["dense"]
    assert describe_inputs(parse({**CONFIG, "arms": fewer})) == {arm: before[arm] for arm in fewer}
    profiles = {"dense": [PROFILE]}
    near = parse({**CONFIG, "features": {"similarity": {"backbone": "tiny"}}})
    assert describe_inputs(near)["bm25"] == describe_inputs(near, profiles)["bm25"]


@pytest.mark.parametrize("run", [None, 2])
def test_labels_count_once_after_the_live_arms_have_changed(
    config: AppConfig, store: Store, tmp_path: Path, run: int | None
) -> None:
    path = outcomes_file(tmp_path, 4, [*ARMS, "rrf"])
    fields = {} if run is None else {"beside": {"runs": [1]}}
    assert "12 new" in warmed(config, path, run=run and 1)
    rrf = {"kind": "rrf", "params": {"arms": ["bm25", "dense"]}}
    changed = parse({**config.model_dump(mode="json"), "arms": {**config.arm_documents, "rrf": rrf}})
    assert "4 new, 12 in the log before" in warmed(changed, path, run=run, **fields)
    fewer = config.with_arms([arm for arm in config.arms if arm != "none"])
    assert "0 new, 8 in the log before" in warmed(fewer, path, run=run, **fields)
    told = [decision.drawn for decision in label_decisions_of(store, 1, 2)]
    assert sorted(told) == sorted(4 * [*ARMS, "rrf"])


def test_an_outcome_that_took_another_time_is_the_same_label() -> None:
    slow, fast = (
        told({"em": [[1.0, 1.0, 1.0]]}, {"steps": np.ones((1, 3)), "retrieval_s": np.full((1, 3), seconds)})
        for seconds in (0.2, 0.1)
    )
    assert [one.decision.id for one in entered(slow)] == [one.decision.id for one in entered(fast)]
    assert entered(slow)[0].execution.cost.retrieval_s == 0.2


@pytest.mark.parametrize("changed", ["terms", "shares", "vectors"])
def test_labels_are_anew_where_a_source_has_changed(changed: str) -> None:
    config = parse({**CONFIG, "features": {"similarity": {"backbone": "tiny"}}})
    before, after = (
        {"bm25": [PROFILE]},
        {"bm25": [replace(PROFILE, **{changed: 2 * getattr(PROFILE, changed)})]},
    )
    assert describe_inputs(config, before) == describe_inputs(config, {**before})
    assert describe_inputs(config, before)["bm25"] != describe_inputs(config, after)["bm25"]


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("armwise.agent.lab.warmstart.labels.BATCH", 16)
    path = outcomes_file(tmp_path)
    whole, killed = (
        parse({**CONFIG, "log_url": f"sqlite:///{tmp_path / name}.db"}) for name in ("whole", "killed")
    )
    warmed(whole, path)
    with monkeypatch.context() as patch:
        patch.setattr(label_turns, "insert", dying_after(2))
        with pytest.raises(LogUnavailableError):
            warmed(killed, path)
    found = []
    for config in (whole, killed):
        store = Store(config.database_url)
        live = learner(store, config, lambda: 1e12)
        live.step()
        found.append((len(learned(store, config.reward)), warmed(config, path).splitlines()[0]))
        live.step()
        version = versions.latest(store)
        assert version is not None
        found.append((version.digest, learned(store, config.reward)))
        store.close()
    of_whole, end_of_whole, of_killed, end_of_killed = found
    assert of_whole == (90, "90 labels of 3 arms on 30 questions: 0 new, 90 in the log before")
    assert of_killed == (32, "90 labels of 3 arms on 30 questions: 58 new, 32 in the log before")
    assert end_of_whole == end_of_killed


def dying_after(commits: int) -> Callable[[Store, Sequence[label_turns.LabelTurn]], int]:
    """Return what enters so many batches, and then finds the disk full."""
    left, real = iter(range(commits)), label_turns.insert

    def enter_or_die(store: Store, batch: Sequence[label_turns.LabelTurn]) -> int:
        if next(left, None) is None:
            raise LogUnavailableError("the disk is full")
        return real(store, batch)

    return enter_or_die


def test_labels_among_traffic_are_replayed(config: AppConfig, store: Store, tmp_path: Path) -> None:
    now = iter(range(10**6))
    live = learner(store, config, lambda: 1000.0 + next(now))
    store.append([fact for number in range(20) for fact in turn(number, ARMS[number % 3])])
    live.step()
    warmed(config, outcomes_file(tmp_path))
    live.step()
    store.append([fact for number in range(20, 40) for fact in turn(number, ARMS[number % 3])])
    version = live.step()
    assert version is not None
    assert version.examples_seq == 130
    replayed = build_policy(config.policy, ARMS)
    for example in read_examples(store, config.reward.join):
        reward = config.reward.compute_reward(example)
        assert reward is not None
        replayed.learn(example.decision, reward)
    assert versions.digest_state(replayed.save()) == version.digest
    context = Context("?", {}, (), {arm: {} for arm in ARMS})
    assert replayed.probabilities(context, ARMS).argmax() == 2


@pytest.mark.parametrize("complete", ["any", "all", "deadline"])
@pytest.mark.parametrize("ago_s", [0.0, 7200.0], ids=["now", "long before what was looked at last"])
@pytest.mark.slow
def test_every_label_is_learned_once_and_in_order_whenever_feedback_is_complete(
    config: AppConfig, store: Store, complete: str, ago_s: float
) -> None:
    rule = config.reward.model_copy(update={"complete": complete})
    outcomes = told({"em": np.ones((400, 3))})
    labels = choose_labels(outcomes, rule, {"right": "em"}, ARMS)  # of two metrics that are declared
    joiner = Joiner(store, rule, take_epoch(store, "test", 0.0), batch=100)
    decision, execution, feedback = turn(0, "dense")
    store.append(
        [
            replace(decision, decided_at=9000.0, deadline=9990.0),
            execution,
            replace(feedback, received_at=9001.0),
        ]
    )
    joiner.advance(10_000.0)
    given = list(turns(labels, seen(outcomes), clock=lambda: 10_000.0 - ago_s))
    for first in range(0, len(given), 199):
        label_turns.insert(store, given[first : first + 199])
        joiner.advance(10_001.0)
    for second in range(30):
        joiner.advance(11_000.0 + second)
    entered = [one.decision.id for one in given]
    in_window = learned(store, rule).index(decision.id)
    assert in_window == (0 if complete == "any" else len(entered)), "labels wait for nothing"
    assert [name for name in learned(store, rule) if name != decision.id] == entered


async def test_a_label_is_described_as_the_service_describes_its_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("armwise.agent.lab.offline.router_features.BLOCK", 2)
    features = {"embedding": {"backbone": "tiny", "dims": 4}}
    async with Service(tmp_path, features=features).running() as service:
        reply = await look_up(service, model="auto")
        record = service.replica.store.record(reply.json()["agent"]["decision_id"])
    assert record is not None
    question = record.decision.context.question
    assert make_contexts(service.config, [question], lambda *_: None) == [record.decision.context]
    questions = [f"river {number}?" for number in range(4)]
    *_, last = make_contexts(service.config, [*questions, question], lambda *_: None)
    assert last == record.decision.context, "in the third batch, too"


@pytest.mark.slow
def test_labels_teach_and_are_no_traffic(config: AppConfig, store: Store, tmp_path: Path) -> None:
    path = outcomes_file(tmp_path, 60)
    rng = np.random.default_rng(0)
    later = time.time() + 10.0  # what is asked before its label is entered cannot judge who learned that
    traffic = [
        replace(fact, decided_at=later, deadline=later + 100.0) if isinstance(fact, Decision) else fact
        for number in range(60)
        for fact in turn(number, ARMS[rng.integers(3)])
    ]
    cold = parse({**CONFIG, "log_url": f"sqlite:///{tmp_path / 'cold.db'}"})
    other = Store(cold.database_url)
    warmed(config, path)
    reports = []
    for log, settings in ((store, config), (other, cold)):
        Joiner(log, settings.reward, take_epoch(log, "test", 0.0)).advance(1e12)
        log.append(traffic)
        join(log, settings)
        asked = EvaluationRequest(candidates=("fixed:dense", "configured"))
        reports.append(replay(settings, asked, LogSource(log, settings.reward), None, lambda *_: None))
    other.close()
    with_labels, without = reports
    assert (with_labels["excluded"], without["excluded"]) == ({"labels": 180}, {})
    assert (with_labels["rows"], with_labels["earned"]) == (without["rows"], without["earned"])
    assert with_labels["candidates"][1] == without["candidates"][1], "fixed:dense"
    warm, empty = (report["candidates"][2]["estimates"][1]["value"] for report in reports)
    assert warm is not None
    assert empty is not None
    assert warm["value"] > empty["value"] + 0.025


def test_a_log_of_labels_alone_cannot_be_evaluated(config: AppConfig, store: Store, tmp_path: Path) -> None:
    warmed(config, outcomes_file(tmp_path))
    Joiner(store, config.reward, take_epoch(store, "test", 0.0)).advance(1e12)
    with pytest.raises(ValueError, match="left out: 90 labels"):
        replay(config, EvaluationRequest(), LogSource(store, config.reward), store, lambda *_: None)


def test_labels_of_a_log_are_scores(config: AppConfig, store: Store, tmp_path: Path) -> None:
    warmed(config, outcomes_file(tmp_path))
    Joiner(store, config.reward, take_epoch(store, "test", 0.0)).advance(1e12)
    scores = tmp_path / "scores"
    settings = Scoring(config=config, output=scores, from_log=True, measure="right")
    score_arms(settings, Console(file=StringIO()), lambda *_: None)
    matrix = read_matrix(scores)
    assert dict(zip(matrix.arms, matrix.scores.mean(axis=1), strict=True)) == {
        "none": 0,
        "bm25": 0,
        "dense": 1,
    }
    # and a matrix may warm up another service
    other = parse({**CONFIG, "log_url": f"sqlite:///{tmp_path / 'other.db'}"})
    said = warmed(other, scores, metrics={"right": "right"})
    assert "90 labels of 3 arms on 30 questions: 90 new" in said
    assert "+0.8000" in said, "right, and two steps at a tenth each"


# -- what is asked for ------------------------------------------------------------------------------------


def test_unlabelled_actions_and_other_arms_are_named(config: AppConfig, tmp_path: Path) -> None:
    said = warmed(config, outcomes_file(tmp_path, 4, ["dense", "[red]rrf", "bm25"]))
    assert "8 labels of 2 arms on 4 questions" in said
    assert [line for line in said.splitlines() if line.startswith("left out")] == [
        "left out: arm '[red]rrf', which is not an action"
    ]
    assert "without any label: none" in said


def test_only_wanted_questions_are_entered(config: AppConfig, store: Store, tmp_path: Path) -> None:
    path, queries = outcomes_file(tmp_path), tmp_path / "queries.jsonl.gz"
    rows = [json.dumps({"id": f"q{row}", "question": f"question {row}"}) for row in (3, 4, 5, 99)]
    queries.write_bytes(gzip.compress("\n".join(rows).encode()))
    said = warmed(config, path, queries=queries)
    assert "9 labels of 3 arms on 3 questions" in said
    assert "27 questions are left out" in said
    assert store.counts()["decisions"] == 9


def test_questions_of_another_file_or_without_a_text_are_refused(config: AppConfig, tmp_path: Path) -> None:
    path, queries = outcomes_file(tmp_path), tmp_path / "queries.jsonl"
    queries.write_text('{"id": "x", "question": "?"}')
    with pytest.raises(WarmStartError, match=r"has no question of .*queries\.jsonl"):
        warmed(config, path, queries=queries)
    path.write_text('{"id": "q1", "arm": "bm25", "em": 1.0}')
    with pytest.raises(portfolio_outcomes.OutcomesError, match="question 'q1' has no text"):
        warmed(config, path)


def test_a_matrix_of_another_arm_of_the_same_name_is_refused(config: AppConfig, tmp_path: Path) -> None:
    specs = {**config.arms, "bm25": config.arms["bm25"].model_copy(update={"params": {"k1": 2.0}})}
    table = MatrixArms(specs, config.backbones, {"steps": dict.fromkeys(specs, 1.0)}, "R@4", {})
    write_matrix(tmp_path / "scores", table, [([Question("q", "?")], np.ones((1, 3), dtype=np.float32))])
    with pytest.raises(RouterError, match="arm 'bm25' is another in"):
        warmed(config, tmp_path / "scores", metrics={"right": "R@4"})


def test_the_verb_enters_labels_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ARMWISE_HOME", raising=False)
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({"applications": [{"args": {**CONFIG, "home": str(tmp_path / "home")}}]}))
    words = ["lab", "enter-labels", str(outcomes_file(tmp_path)), "--metric", "right=em", "-c", str(path)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "90 labels of 3 arms on 30 questions: 90 new" in result.output
    result = CliRunner().invoke(app, [*words, "--metric", "right=acc"])
    assert result.exit_code == 2
    assert "--metric right is given twice: with em and with acc" in result.output
