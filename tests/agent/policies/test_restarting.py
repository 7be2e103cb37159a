"""A policy that is replaced by a fresh one where the rewards say that the world has changed."""

import json
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from armwise.agent.policies import (
    Policy,
    PolicyError,
    PolicySpec,
    build_policy,
    require_action_features,
    restarting,
    served_distribution,
)
from armwise.agent.policies.restarting import Restarting
from armwise.agent.policies.serialization import unpack
from armwise.feedback.events import Context, Decision
from armwise.feedback.texts import pseudonym

ARMS = ("bm25", "dense", "rrf")
FLOOR = 0.01


def made(policy: Mapping[str, Any], **params: Any) -> Restarting:
    found = build_policy(PolicySpec(kind="restarting", params={"policy": policy, **params}), ARMS)
    assert isinstance(found, Restarting)
    return found


def decision(rng: np.random.Generator, drawn: str, p: float = 1 / 3, numbers: int = 0) -> Decision:
    features = {"length": float(rng.random()), "w=secret": 1.0}
    about = {arm: {"steps": float(arm == "rrf")} for arm in ARMS}
    context = Context("A secret?", features, tuple(rng.normal(size=numbers).tolist()), about)
    rest = (1.0 - p) / 2
    return Decision("d", context, ARMS, tuple(p if arm == drawn else rest for arm in ARMS), drawn, "x", 1)


def live(policy: Policy, n: int, change: int, seed: int) -> list[str]:
    """Ask n questions; the best arm becomes the worst at `change`. Return the drawn arms."""
    rng, drawn = np.random.default_rng(seed), list[str]()
    for t in range(n):
        one = decision(rng, "bm25")
        p = served_distribution(policy, one.context, ARMS, FLOOR)
        arm = ARMS[rng.choice(3, p=p)]
        chance = {"bm25": 0.8, "dense": 0.5, "rrf": 0.2}[arm]
        chance = chance if t < change else 1.0 - chance
        rewarded = Decision("d", one.context, ARMS, tuple(p.tolist()), arm, "x", 1)
        policy.learn(rewarded, float(rng.random() < chance))
        drawn.append(arm)
    return drawn


def taught(policy: Policy, rows: list[tuple[Decision, float]]) -> Policy:
    for row in rows:
        policy.learn(*row)
    return policy


def fallen(seed: int = 3, numbers: int = 0) -> list[tuple[Decision, float]]:
    """Return decisions of uniform draws in a world in which `bm25` falls after 400 rewards."""
    rng, rows = np.random.default_rng(seed), []
    for t in range(500):
        arm = ARMS[rng.integers(3)]
        chance = 0.3 if arm != "bm25" else 0.9 if t < 400 else 0.1
        rows.append((decision(rng, arm, numbers=numbers), float(rng.random() < chance)))
    return rows


@pytest.mark.parametrize(
    "inner", [{"kind": "epsilon_greedy", "params": {"epsilon": 0.1}}, {"kind": "linucb"}]
)
@pytest.mark.slow
def test_a_restarted_policy_follows_a_change_that_it_would_not_follow_by_itself(
    inner: dict[str, Any],
) -> None:
    policy = made(inner)
    followed = live(policy, 3000, 2500, seed=1)[2600:].count("rrf") / 400
    (restart,) = policy.restarts
    assert restart.arm == "bm25"
    assert not restart.rise
    assert 2500 < restart.reward < 2600
    alone = live(build_policy(PolicySpec.model_validate(inner), ARMS), 3000, 2500, seed=1)
    assert followed > 0.6
    assert followed > 0.2 + alone[2600:].count("rrf") / 400


@pytest.mark.parametrize("kind", ["vowpal", "epsilon_greedy"])
def test_in_a_calm_world_it_is_the_policy_itself(kind: str) -> None:
    policy, alone = made({"kind": kind}), build_policy(PolicySpec(kind=kind), ARMS)
    assert live(policy, 800, 10_000, seed=2) == live(alone, 800, 10_000, seed=2)
    assert policy.restarts == ()


@pytest.mark.parametrize("kind", ["vowpal", "epsilon_greedy", "linear_thompson"])
def test_after_a_restart_it_is_a_policy_that_has_learned_the_kept_decisions_alone(kind: str) -> None:
    rows, policy = fallen(), made({"kind": kind})
    taught(policy, rows)
    (restart,) = policy.restarts
    assert 100 <= restart.kept < restart.reward
    since = rows[restart.reward - restart.kept :]
    fresh = taught(build_policy(PolicySpec(kind=kind), ARMS), since)
    for seed in range(5):
        context = decision(np.random.default_rng(seed), "rrf").context
        np.testing.assert_array_equal(policy.probabilities(context, ARMS), fresh.probabilities(context, ARMS))


@pytest.mark.parametrize("kind", ["vowpal", "linucb"])
@pytest.mark.parametrize("numbers", [0, 3])
def test_a_state_saved_before_a_restart_restarts_from_the_same_decisions(kind: str, numbers: int) -> None:
    rows, whole, ahead = fallen(numbers=numbers), made({"kind": kind}), made({"kind": kind})
    taught(ahead, rows)
    before = ahead.restarts[0].reward - 1
    taught(whole, rows[:before])
    resumed = made({"kind": kind}).load(whole.save())
    assert taught(whole, rows[before:]).save() == taught(resumed, rows[before:]).save()
    assert whole.restarts == resumed.restarts != ()


def test_what_it_keeps_of_a_decision_has_no_text_of_a_caller() -> None:
    policy = taught(made({"kind": "epsilon_greedy"}), fallen())
    _, arrays = unpack(policy.save().partition(b"\n")[2])
    kept = zlib.decompress(arrays["latest"].tobytes()).decode()
    assert "ecret" not in kept
    assert pseudonym("w=secret") in kept
    assert len(json.loads(kept)) == 500


def test_it_keeps_500_decisions() -> None:
    policy = made({"kind": "linucb"})
    rng = np.random.default_rng(0)
    for _ in range(3):
        for _ in range(260):
            policy.learn(decision(rng, "bm25"), 0.5)
        policy = policy.load(policy.save())
    _, arrays = unpack(policy.save().partition(b"\n")[2])
    assert len(json.loads(zlib.decompress(arrays["latest"].tobytes()))) == 500


def test_a_state_of_another_policy_run_length_or_layout_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    state = made({"kind": "linucb"}).save()
    for other in (
        made({"kind": "linucb", "params": {"alpha": 0.3}}),
        made({"kind": "linucb"}, run_length=9000.0),
        made({"kind": "linucb"}, dims=8),
    ):
        with pytest.raises(PolicyError, match="is damaged, or not of"):
            other.load(state)
    monkeypatch.setattr(restarting, "LAYOUT", 1)
    with pytest.raises(PolicyError, match=r'"layout": 2.* is damaged, or not of .*"layout": 1'):
        made({"kind": "linucb"}).load(state)


def test_a_price_reaches_a_policy_that_predicts_rewards() -> None:
    policy = taught(made({"kind": "linucb", "params": {"alpha": 0.0}}), fallen()[:300])
    context = decision(np.random.default_rng(1), "rrf").context
    assert served_distribution(policy, context, ARMS, 0.0).tolist() == [1.0, 0.0, 0.0]
    assert served_distribution(policy, context, ARMS, 0.0, (0.9, 0.0, 0.9)).tolist() == [0.0, 1.0, 0.0]


def test_the_odds_of_a_policy_without_predictions_are_shifted_by_a_price() -> None:
    policy = taught(made({"kind": "vowpal"}), fallen()[:300])
    alone = taught(build_policy(PolicySpec(kind="vowpal"), ARMS), fallen()[:300])
    context = decision(np.random.default_rng(1), "rrf").context
    price = (0.2, 0.0, 0.1)
    np.testing.assert_array_equal(
        served_distribution(policy, context, ARMS, FLOOR, price),
        served_distribution(alone, context, ARMS, FLOOR, price),
    )


def test_it_answers_for_what_its_policy_is_asked_besides() -> None:
    shadowing = made(
        {"kind": "apprentice", "params": {"baseline": {"kind": "uniform"}, "policy": {"kind": "linucb"}}}
    )
    context = decision(np.random.default_rng(1), "rrf").context
    assert shadowing.in_shadow.probabilities(context, ARMS).sum() == pytest.approx(1.0)
    assert set(made({"kind": "linucb"}).contributions(context, ARMS)) == {"prior"}
    assert not hasattr(made({"kind": "vowpal"}), "in_shadow")


def test_it_does_not_decide_among_actions_of_a_request_as_each_would_be_watched() -> None:
    inner = {"kind": "vowpal", "params": {"args": "--cb_explore_adf -q sf"}}
    require_action_features(PolicySpec.model_validate(inner))
    with pytest.raises(PolicyError, match="policy 'restarting' learns the effect of a context for each name"):
        require_action_features(PolicySpec(kind="restarting", params={"policy": inner}))


def test_a_policy_that_resumes_by_a_replay_still_does() -> None:
    args = "--cb_explore_adf --bag 5 -q sa"
    assert not made({"kind": "vowpal", "params": {"args": args}}).resumes_exactly
    assert made({"kind": "vowpal"}).resumes_exactly


def test_a_policy_that_reads_the_text_of_a_question_is_refused() -> None:
    class Reader(type(build_policy(PolicySpec(kind="uniform"), ARMS))):  # type: ignore[misc]
        kind = "reader"
        reads_question = True

    with pytest.raises(PolicyError, match="policy 'reader' reads the texts of questions"):
        Restarting(Reader())


def test_a_longer_run_length_restarts_later() -> None:
    at = []
    for run_length in (100.0, 1e5, 1e300):
        policy = taught(made({"kind": "epsilon_greedy"}, run_length=run_length), fallen())
        at.append([restart.reward for restart in policy.restarts if restart.reward > 400][:1])
    assert at[0] < at[1]
    assert at[2] == []
    with pytest.raises(PolicyError, match="run_length 0 is not a finite number above 1"):
        made({"kind": "linucb"}, run_length=0)


@pytest.mark.parametrize("kind", ["adaptive", "restarting"])
def test_a_parameter_that_is_gone_is_refused_with_what_takes_its_place(kind: str) -> None:
    params = {"policy": {"kind": "linucb"}} if kind == "restarting" else {}
    for name, instead in {"threshold": "set run_length", "slack": "run_length alone"}.items():
        spec = PolicySpec(kind=kind, params={**params, name: 1.0})
        with pytest.raises(PolicyError, match=f"{kind!r} no longer has a parameter {name!r}: {instead}"):
            build_policy(spec, ARMS)


@pytest.mark.parametrize("rate", [0.02, 0.98])
def test_rare_and_nearly_certain_rewards_restart_nothing(rate: float) -> None:
    rng, policy = np.random.default_rng(int(100 * rate)), made({"kind": "epsilon_greedy"}, dims=0)
    drawn = decision(rng, "bm25")
    for reward in (rng.random(8000) < rate).astype(float).tolist():
        policy.learn(drawn, reward)
    assert policy.restarts == ()


def test_an_arm_that_gets_other_questions_is_no_change_where_features_tell_them() -> None:
    rng, policy = np.random.default_rng(3), made({"kind": "epsilon_greedy"}, dims=8)
    for t in range(2400):
        easy = rng.random() < (0.2 if t < 1200 else 0.8)
        seen = Context("?", {"easy" if easy else "hard": 1.0})
        row = Decision("d", seen, ARMS, (1 / 3, 1 / 3, 1 / 3), "bm25", "x", 1)
        policy.learn(row, float(rng.random() < (0.9 if easy else 0.3)))
    assert policy.restarts == ()


def test_a_reward_that_is_not_finite_is_refused_before_anything_is_learned() -> None:
    policy = made({"kind": "linucb"})
    before = policy.save()
    with pytest.raises(PolicyError, match="reward nan"):
        policy.learn(decision(np.random.default_rng(1), "rrf"), float("nan"))
    assert policy.save() == before
