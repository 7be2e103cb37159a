"""Epsilon-greedy: its numbers by hand, its regression against that of river."""

import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from river import base, linear_model, optim

from armwise.agent.policies.base import PolicyError
from armwise.agent.policies.epsilon_greedy import EpsilonGreedy, EpsilonSchedule
from armwise.agent.policies.serialization import seal
from armwise.feedback.events import Context, Decision
from tests.agent.attacks import Command
from tests.contracts import ARMS, contexts, epsilon_of, history, teach


def decision(drawn: str, seen: Context | None = None) -> Decision:
    return Decision("d", seen or Context("?"), ARMS, (1 / 3,) * 3, drawn, "epsilon_greedy", 1)


def test_untried_arms_share_the_mass() -> None:
    assert EpsilonGreedy().probabilities(Context("?"), ARMS).tolist() == pytest.approx([1 / 3] * 3)


def test_three_rewards_leave_the_best_arm_all_but_epsilon() -> None:
    policy = EpsilonGreedy(epsilon=0.3)
    for drawn, reward in (("bm25", 0.0), ("dense", 1.0), ("none", 0.0)):
        policy.learn(decision(drawn), reward)
    assert policy.probabilities(Context("?"), ARMS).tolist() == pytest.approx([0.1, 0.8, 0.1])


@pytest.mark.parametrize(("reward", "expected"), [(0.5, [0.05, 0.95]), (9.0, [0.95, 0.05])])
def test_a_new_arm_is_expected_to_earn_1(reward: float, expected: list[float]) -> None:
    policy = EpsilonGreedy(epsilon=0.1)
    for _ in range(100):
        policy.learn(decision("bm25"), reward)
    assert policy.probabilities(Context("?"), ("bm25", "new")).tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("epsilon", "decay", "rewards", "expected"),
    [
        (0.4, 10.0, 0, 0.4),
        (0.4, 10.0, 10, 0.2),
        (0.05, None, 10**6, 0.05),
        (1.0, None, 5, 1.0),
        (0.0, None, 5, 0.0),
        (0.8, "log", 1, 0.8),  # a logarithm below 1 does not count
        (0.8, "log", 99, 0.8 / math.log(100)),
    ],
)
def test_epsilon_falls_by_its_schedule(epsilon: float, decay: Any, rewards: int, expected: float) -> None:
    assert EpsilonSchedule(epsilon, decay).at(rewards) == pytest.approx(expected)


def test_epsilon_falls_with_each_reward_where_a_decay_is_set() -> None:
    for policy, expected in ((EpsilonGreedy(), 0.05), (EpsilonGreedy(epsilon=0.4, decay=10.0), 0.2)):
        teach(policy, history(policy, 10, seed=30))
        assert epsilon_of(policy) == pytest.approx(expected)


def test_each_arm_is_the_river_model_of_its_own_rewards() -> None:
    policy = EpsilonGreedy(epsilon=0.0)
    rows = history(policy, 120, seed=32)
    teach(policy, rows)
    reference: dict[str, base.Regressor] = {
        arm: linear_model.LinearRegression(optimizer=optim.AdaGrad(0.02)) for arm in ARMS
    }

    def features(seen: Context) -> dict[Any, float]:
        return {**seen.features, **{f"e{i}": value for i, value in enumerate(seen.embedding)}}

    for row, reward in rows:
        reference[row.drawn].learn_one(features(row.context), reward)
    for seen in contexts(30, seed=33):
        scores = np.array([reference[arm].predict_one(features(seen)) for arm in ARMS])
        assert policy.probabilities(seen, ARMS)[scores.argmax()] == 1.0


def test_equal_states_give_equal_bytes_whatever_objects_hold_their_names() -> None:
    first, second = EpsilonGreedy(), EpsilonGreedy()
    for policy, names in ((first, ["size", "size"]), (second, ["si" + "ze"[:], "".join(["s", "ize"])])):
        for name in names:
            policy.learn(decision("bm25", Context("?", {name: 1.0})), 0.5)
    assert first.save() == second.save()


def test_a_pickle_among_the_checkpoints_is_refused_and_never_read(tmp_path: Path) -> None:
    policy, called = EpsilonGreedy(), tmp_path / "called"
    with pytest.raises(PolicyError, match="cannot be read: UnicodeDecodeError"):
        policy.load(seal({"kind": "epsilon_greedy"}, pickle.dumps(Command(f"touch {called}"))))
    assert not called.exists()
