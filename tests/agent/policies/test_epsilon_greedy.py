"""Epsilon-greedy: its numbers by hand, its model against river itself."""

import importlib
import json
import math
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from river import base, linear_model, optim

from armwise.agent.policies.base import Policy, PolicyError
from armwise.agent.policies.catalog import PolicySpec, build_policy
from armwise.agent.policies.epsilon_greedy import (
    LINEAR,
    MODELS,
    STATES,
    EpsilonGreedy,
    EpsilonSchedule,
    Model,
)
from armwise.agent.policies.serialization import seal
from armwise.feedback.events import Context, Decision
from tests.agent.attacks import CALLS, MODULE, Command, Trap, a_trap
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


@pytest.mark.parametrize(("prior", "expected"), [(2.0, [0.05, 0.95]), (-1.0, [0.95, 0.05])])
def test_the_prior_says_what_a_new_arm_is_worth(prior: float, expected: list[float]) -> None:
    policy = EpsilonGreedy(epsilon=0.1, prior=prior)
    policy.learn(decision("bm25"), 0.5)
    assert policy.probabilities(Context("?"), ("bm25", "new")).tolist() == pytest.approx(expected)


def test_epsilon_has_halved_after_decay_rewards() -> None:
    policy = EpsilonGreedy(epsilon=0.4, decay=10.0, min_epsilon=0.05)
    assert epsilon_of(policy) == 0.4
    teach(policy, history(policy, 10, seed=30))
    assert epsilon_of(policy) == pytest.approx(0.2)
    teach(policy, history(policy, 1000, seed=31))
    assert epsilon_of(policy) == 0.05


def test_by_default_a_twentieth_explores_for_ever_and_an_untried_arm_is_worth_1() -> None:
    policy = EpsilonGreedy()
    assert policy.prior == 1.0
    assert epsilon_of(policy) == pytest.approx(0.05)
    teach(policy, history(policy, 200, seed=38))
    assert epsilon_of(policy) == pytest.approx(0.05)
    vanishing = EpsilonGreedy(epsilon=0.1, decay=1e-9)
    teach(vanishing, history(vanishing, 3, seed=39))
    assert epsilon_of(vanishing) < 1e-8, "min_epsilon is 0 by default"


def test_the_logarithmic_decay_divides_by_the_logarithm_of_one_more_than_the_rewards() -> None:
    decay = EpsilonSchedule(0.8, "log", 0.1)
    assert [decay.at(0), decay.at(1)] == [0.8, 0.8], "a logarithm below 1 does not count"
    assert decay.at(99) == pytest.approx(0.8 / math.log(100))
    assert decay.at(10**6) == 0.1


def test_the_ends_of_the_range_of_epsilon_are_allowed() -> None:
    for epsilon, least in ((0.0, 0.0), (1.0, 1.0), (1.0, 0.0)):
        assert EpsilonSchedule(epsilon, None, least).at(5) == epsilon
    with pytest.raises(PolicyError, match=r"-0\.1 and 0\.1"):
        EpsilonSchedule(0.1, None, -0.1)


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


@pytest.mark.parametrize(
    ("model", "params"),
    [
        ("river.tree.HoeffdingTreeRegressor", {"grace_period": 10}),
        ("river.forest.ARFRegressor", {"n_models": 2, "seed": 1}),
    ],
)
def test_a_river_regressor_learns_which_arm_is_best(model: Model, params: dict[str, object]) -> None:
    policy = EpsilonGreedy(model, params)
    teach(policy, history(policy, 150, seed=34, best="dense"))
    assert policy.probabilities(contexts(1, seed=35)[0], ARMS)[1] > 0.9
    assert policy.load(policy.save()).save() == policy.save()


@pytest.mark.parametrize(
    ("model", "params"),
    [
        *((model, None) for model in MODELS),
        ("river.tree.HoeffdingTreeRegressor", {"leaf_prediction": "mean"}),
        ("river.tree.HoeffdingTreeRegressor", {"leaf_prediction": "model", "binary_split": True}),
        ("river.tree.HoeffdingTreeRegressor", {"nominal_attributes": ["words"], "max_depth": 2}),
        ("river.tree.HoeffdingAdaptiveTreeRegressor", {"leaf_prediction": "mean", "grace_period": 10}),
        ("river.forest.ARFRegressor", {"aggregation_method": "mean", "leaf_prediction": "model"}),
        ("river.forest.OXTRegressor", {"detection_mode": "drop"}),
        ("river.forest.OXTRegressor", {"detection_mode": "off", "resampling_strategy": None}),
        ("river.ensemble.SRPRegressor", {"training_method": "resampling", "disable_detector": "drift"}),
        ("river.linear_model.PARegressor", {"mode": 1}),
        ("river.linear_model.PARegressor", {"mode": 2}),
        ("river.linear_model.LinearRegression", {"l1": 0.01}),
        ("river.linear_model.BayesianLinearRegression", {"smoothing": 0.8}),
    ],
)
@pytest.mark.slow
def test_a_model_goes_on_from_its_state_byte_for_byte(model: Model, params: dict[str, object] | None) -> None:
    first, second = EpsilonGreedy(model, params), EpsilonGreedy(model, params)
    rows = history(first, 120, seed=37)
    teach(first, rows)
    teach(second, rows[:60])
    assert teach(second.load(second.save()), rows[60:]).save() == first.save()


@pytest.mark.parametrize("model", [model for model in MODELS if model != LINEAR])
def test_every_path_that_is_followed_is_a_regressor_of_river(model: str) -> None:
    module, _, name = model.rpartition(".")
    found = getattr(importlib.import_module(module), name)
    assert issubclass(found, base.Regressor)
    assert found.__module__.startswith("river.")


@pytest.mark.parametrize("params", [{"n_models": 3}, {"n_models": 3, "seed": 5}])
def test_equal_histories_give_equal_bytes_for_a_model_that_draws(params: dict[str, object]) -> None:
    first, second = (EpsilonGreedy("river.forest.ARFRegressor", params) for _ in range(2))
    rows = history(first, 60, seed=36)
    assert teach(first, rows).save() == teach(second, rows).save()


def test_equal_states_give_equal_bytes_whatever_objects_hold_their_names() -> None:
    first, second = EpsilonGreedy(), EpsilonGreedy()
    for policy, names in ((first, ["size", "size"]), (second, ["si" + "ze"[:], "".join(["s", "ize"])])):
        for name in names:
            policy.learn(decision("bm25", Context("?", {name: 1.0})), 0.5)
    assert first.save() == second.save()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"epsilon": 1.5}, "0.0 and 1.5"),
        ({"epsilon": 0.1, "min_epsilon": 0.2}, "0.2 and 0.1"),
        ({"decay": 0.0}, "decay 0.0"),
        ({"decay": "exp"}, "decay 'exp'"),
        ({"model": "lineal"}, "'lineal' is not allowed; did you mean 'linear'"),
        ({"model": "zzz"}, "'zzz' is not allowed; there are: linear, river.ensemble.SRPRegressor, "),
        ({"model": None}, "None is not allowed"),
        ({"model": ["linear"]}, r"\['linear'\] is not allowed"),
        ({"params": {"x": 1}}, "'linear' with {'x': 1} cannot be built"),
        ({"model": "river.tree.HoeffdingTree"}, "did you mean 'river.tree.HoeffdingTreeRegressor'"),
        ({"model": "river.linear_model.lin_reg.LinearRegression"}, "river.linear_model.LinearRegression'"),
        ({"model": "river.linear_model.LinearRegression", "params": {"x": 1}}, "cannot be built: .* 'x'"),
        ({"model": "river.linear_model.LogisticRegression"}, "LogisticRegression' is not allowed"),
        ({"model": "river.linear_model.PARegressor", "params": {"mode": "x"}}, "'x'} cannot be built"),
        ({"params": ["l2"]}, r"params of model 'linear': .*, got \['l2'\]"),
        ({"params": {"optimizer": {"lr": 1}}}, "'optimizer' must be a number"),
        ({"params": {"l2": [[0.1]]}}, r"'l2' must be a number, .* got \[\[0.1\]\]"),
        ({"params": {"optimizer": optim.SGD()}}, "'optimizer' must be a number"),
    ],
)
def test_a_parameter_out_of_range_is_refused(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(PolicyError, match=words):
        EpsilonGreedy(**arguments)  # type: ignore[arg-type]


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trap:
    return a_trap(tmp_path, monkeypatch)


BUILDS: dict[str, Callable[[dict[str, Any]], Policy]] = {
    "itself": lambda params: EpsilonGreedy(**params),
    "by the catalogue": lambda params: build_policy(PolicySpec(kind="epsilon_greedy", params=params), ARMS),
}


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
@pytest.mark.parametrize("call", CALLS)
def test_a_model_that_is_code_is_neither_imported_nor_called(
    build: Callable[[dict[str, Any]], Policy], call: str, trap: Trap
) -> None:
    params = trap.call(call)
    with pytest.raises(PolicyError, match=f"model '{params['model']}' is not allowed; "):
        build(params)
    trap.check()


def test_state_that_is_damaged_or_of_another_model_is_refused() -> None:
    policy = EpsilonGreedy()
    state = policy.save()
    other = EpsilonGreedy("river.linear_model.BayesianLinearRegression").save()
    for wrong in (b"", state[:-1], state + b"?", other):
        with pytest.raises(PolicyError, match=r'is damaged, or not of \{"format": 1, "model": "linear"'):
            policy.load(wrong)


def test_state_of_another_river_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = EpsilonGreedy()
    with monkeypatch.context() as before:
        before.setattr("armwise.agent.policies.epsilon_greedy.RIVER_VERSION", "0.1.0")
        old = policy.save()
    with pytest.raises(
        PolicyError, match=r'"river": "0\.1\.0".* is damaged, or not of \{"format": 1, "model": "linear"'
    ):
        policy.load(old)


def test_a_pickle_among_the_checkpoints_is_refused_and_never_read(trap: Trap) -> None:
    policy = EpsilonGreedy()
    made_by = json.loads(policy.save().partition(b"\n")[0])
    del made_by["blake2b"]
    for settings in (made_by, {name: value for name, value in made_by.items() if name != "format"}):
        with pytest.raises(PolicyError, match=r"cannot be read: UnicodeDecodeError|is damaged, or not of"):
            policy.load(seal(settings, pickle.dumps(Command(f"touch {trap.called}"))))
    trap.check()


@pytest.mark.parametrize(
    ("row", "refused"),
    [
        ('["call","os:system",["tuple","touch CALLED"],null]', "no row begins with"),
        ('["new","subprocess:Popen",["tuple","touch CALLED"],null]', "subprocess:Popen is not allowed"),
        (f'["new","{MODULE}:call",["tuple"],null]', f"{MODULE}:call is not allowed"),
        (f'["list",["named","{MODULE}:call"]]', f"{MODULE}:call is not allowed"),
        ('["list",["method","os:system","touch CALLED"]]', "os:system is not allowed"),
        ('["new","river.optim.losses:abc.sys.modules.__class__",["tuple"],null]', "AttributeError|is a name"),
        ('["list",["named","river.tree.base:Iterable"]]', "not allowed|AttributeError"),
        ('["call","random:Random",[0],null]', "RecursionError"),
        ('["call","collections:defaultdict",["tuple",["named","builtins:eval"]],null]', "builtins:eval is"),
        ('["array","|O","C",[1],"AAAAAAAAAAA="]', "an array of object is not allowed"),
        ('["list",["number","O",1]]', "an array of object is not allowed"),
        ('["pickle","gASVBQAAAAAAAABLAS4="]', "no row begins with"),
        ('["list",["shell","touch CALLED"]]', "no value begins with"),
    ],
)
def test_a_state_that_names_code_is_refused_before_it_is_imported(row: str, refused: str, trap: Trap) -> None:
    policy = EpsilonGreedy()
    made_by = json.loads(policy.save().partition(b"\n")[0])
    del made_by["blake2b"]
    body = f"[{row.replace('CALLED', str(trap.called))}]".encode()
    with pytest.raises(PolicyError, match=refused):
        policy.load(seal(made_by, body))
    trap.check()


def test_a_state_holds_only_what_can_be_read_back() -> None:
    for value in (os.system, open, Command("true"), Path("x"), np.array([object()])):
        with pytest.raises(PolicyError, match="not allowed in a state"):
            STATES.dump({"a": value})


def test_what_a_state_shares_is_shared_again_and_what_it_links_is_linked() -> None:
    inner: dict[str, Any] = {
        "n": [1, -0.0, float("inf"), None, (b"x", np.float32(0.1))],
        "a": np.eye(2).T[:1],
    }
    inner["self"] = inner
    found = STATES.load(STATES.dump({1: inner, "again": inner, "names": {"b", "a"}}))
    assert found[1] is found["again"] is found[1]["self"]
    assert repr(found[1]["n"]) == repr(inner["n"])
    assert np.array_equal(found[1]["a"], inner["a"])
    assert found["names"] == {"a", "b"}


def test_state_of_a_class_that_is_missing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = EpsilonGreedy()
    policy.learn(decision("bm25"), 1.0)
    state = policy.save()
    monkeypatch.delattr("river.linear_model.lin_reg.LinearRegression")
    with pytest.raises(PolicyError, match="state cannot be read: AttributeError"):
        policy.load(state)


def test_a_reward_that_is_not_finite_is_refused() -> None:
    with pytest.raises(PolicyError, match="reward nan of decision 'd' is not finite"):
        EpsilonGreedy().learn(decision("bm25"), float("nan"))
