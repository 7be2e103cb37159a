"""Every policy of the catalogue keeps every promise of `tests/contracts.py`."""

import inspect
from collections.abc import Callable

import pytest

from agent.policies import POLICIES, PolicySpec, build_policy
from tests.contracts import ARMS, CHECKS, EXACT_CHECKS, LEARNING_CHECKS, Build

ADF = "--cb_explore_adf -q sa -q ea"

STILL = {
    "uniform": PolicySpec(kind="uniform"),
    "fixed": PolicySpec(kind="fixed", params={"arm": "dense"}),
    "routed": PolicySpec(kind="routed", params={"feature": "steps"}),
    "routed softmax": PolicySpec(kind="routed", params={"feature": "steps", "explore": "softmax"}),
    "routed squarecb": PolicySpec(kind="routed", params={"feature": "steps", "explore": "squarecb"}),
    "apprentice": PolicySpec(
        kind="apprentice",
        params={"baseline": {"kind": "fixed", "params": {"arm": "dense"}}, "policy": {"kind": "vowpal"}},
    ),
}
"""Policies whose distribution stays; what an apprentice learns is tested beside it."""
LEARNING = {
    "epsilon_greedy": PolicySpec(kind="epsilon_greedy"),
    "epsilon_greedy decaying": PolicySpec(kind="epsilon_greedy", params={"epsilon": 0.5, "decay": 20.0}),
    "epsilon_greedy falling with the logarithm": PolicySpec(
        kind="epsilon_greedy", params={"epsilon": 1.0, "decay": "log"}
    ),
    "linucb": PolicySpec(kind="linucb"),
    "linucb disjoint": PolicySpec(kind="linucb", params={"shared": False}),
    "linucb on a prior": PolicySpec(
        kind="linucb", params={"prior_feature": "steps", "ridge": 10.0, "dims": 8}
    ),
    "linear_thompson": PolicySpec(kind="linear_thompson"),
    "linear_thompson disjoint": PolicySpec(kind="linear_thompson", params={"shared": False}),
    "neural": PolicySpec(kind="neural"),
    "neural without a hidden layer": PolicySpec(kind="neural", params={"hidden": 0, "learning_rate": 0.02}),
    "vowpal": PolicySpec(kind="vowpal"),
} | {
    f"vowpal {flags}": PolicySpec(kind="vowpal", params={"args": f"{ADF} {flags}"})
    for flags in (
        "--epsilon 0.05",
        "--epsilon 0.05 --first_only",
        "--epsilon 0.05 --cb_type ips",
        "--epsilon 0.05 --cb_type dm",
        "--epsilon 0.05 --cb_type dr",
        "--epsilon 0.05 --sgd --learning_rate 0.1",
        "--epsilon 0.05 --coin",
        "--squarecb",
        "--regcb --cb_min_cost 0 --cb_max_cost 1 --mellowness 0.01",
        "--regcbopt --cb_min_cost 0 --cb_max_cost 1 --mellowness 0.01",
        "--softmax --lambda 10",
        "--synthcover",
        "--cover 3",
        "--bag 5 --random_seed 7",
        "--rnd 3 --random_seed 7",
        "--large_action_space --max_actions 3 --epsilon 0.05",
    )
}


def builder(spec: PolicySpec) -> Build:
    return lambda: build_policy(spec, ARMS)


EXACT = {name: spec for name, spec in (STILL | LEARNING).items() if builder(spec)().resumes_exactly}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("spec", (STILL | LEARNING).values(), ids=(STILL | LEARNING).keys())
def test_policy_keeps_its_promise(spec: PolicySpec, check: Callable[[Build], None]) -> None:
    check(builder(spec))


@pytest.mark.parametrize("check", EXACT_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("spec", EXACT.values(), ids=EXACT.keys())
def test_exact_policy_resumes(spec: PolicySpec, check: Callable[[Build], None]) -> None:
    check(builder(spec))


@pytest.mark.parametrize("check", LEARNING_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("spec", LEARNING.values(), ids=LEARNING.keys())
def test_learning_policy_learns(spec: PolicySpec, check: Callable[[Build], None]) -> None:
    check(builder(spec))


def test_only_some_of_vowpal_is_not_exact() -> None:
    inexact = {spec.kind for name, spec in (STILL | LEARNING).items() if name not in EXACT}
    assert inexact == {"vowpal"}
    assert "vowpal" in {spec.kind for spec in EXACT.values()}


def test_every_kind_of_the_catalogue_is_checked() -> None:
    assert {spec.kind for spec in (STILL | LEARNING).values()} == set(POLICIES)


@pytest.mark.parametrize(
    ("kind", "defaults"),
    [
        (
            "epsilon_greedy",
            {
                "model": "linear",
                "params": None,
                "epsilon": 0.1,
                "decay": None,
                "min_epsilon": 0.0,
                "prior": 1.0,
            },
        ),
        (
            "neural",
            {
                "encoder": None,
                "hidden": 64,
                "dims": 32,
                "max_length": 256,
                "learning_rate": None,
                "weight_decay": 0.01,
                "epsilon": 0.1,
                "decay": None,
                "min_epsilon": 0.0,
                "prior": 1.0,
                "seed": 0,
            },
        ),
        (
            "routed",
            {"explore": "epsilon", "epsilon": 0.05, "temperature": 0.1, "gamma": 100.0, "feature": "router"},
        ),
        (
            "vowpal",
            {
                "args": "--cb_explore_adf --squarecb --gamma_scale 20 --clip_p 1 --learning_rate 0.2 "
                "-q sa -q ea",
                "baseline": 1.0,
            },
        ),
    ],
)
def test_a_policy_without_parameters_has_the_documented_ones(kind: str, defaults: dict[str, object]) -> None:
    parameters = inspect.signature(POLICIES[kind]).parameters.values()
    assert {one.name: one.default for one in parameters if not one.name.startswith("_")} == defaults
