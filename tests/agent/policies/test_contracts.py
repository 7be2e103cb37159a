"""Every policy of the catalogue keeps every promise of `tests/contracts.py`."""

from collections.abc import Callable

import pytest

from armwise.agent.policies import POLICIES, PolicySpec, Uniform, build_policy
from tests.contracts import ARMS, CHECKS, CONTEXT_CHECKS, EXACT_CHECKS, LEARNING_CHECKS, Build

ADF = "--cb_explore_adf -q sa -q ea"

EXAMPLES = {
    kind: PolicySpec(kind=kind, params=dict(getattr(made, "example", {})))
    for kind, made in POLICIES.own.items()
}
"""A policy of each kind."""
VARIANTS = {
    "adaptive on a prior": PolicySpec(kind="adaptive", params={"prior_feature": "steps", "dims": 8}),
    "epsilon_greedy decaying": PolicySpec(kind="epsilon_greedy", params={"epsilon": 0.5, "decay": 20.0}),
    "epsilon_greedy falling with the logarithm": PolicySpec(
        kind="epsilon_greedy", params={"epsilon": 1.0, "decay": "log"}
    ),
    "linucb disjoint": PolicySpec(kind="linucb", params={"shared": False}),
    "linucb on a prior": PolicySpec(
        kind="linucb", params={"prior_feature": "steps", "ridge": 10.0, "dims": 8}
    ),
    "linear_thompson disjoint": PolicySpec(kind="linear_thompson", params={"shared": False}),
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


ALL = EXAMPLES | VARIANTS
EXACT = {name: spec for name, spec in ALL.items() if builder(spec)().resumes_exactly}
LEARNING = {name: spec for name, spec in ALL.items() if not isinstance(builder(spec)(), Uniform)}
"""Policies whose distribution changes."""
CONTEXTUAL = {
    name: spec for name, spec in LEARNING.items() if getattr(POLICIES[spec.kind], "reads_context", True)
}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("spec", ALL.values(), ids=ALL.keys())
def test_policy_keeps_its_promise(spec: PolicySpec, check: Callable[[Build], None]) -> None:
    check(builder(spec))


@pytest.mark.parametrize("check", EXACT_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("spec", EXACT.values(), ids=EXACT.keys())
def test_exact_policy_resumes(spec: PolicySpec, check: Callable[[Build], None]) -> None:
    check(builder(spec))


@pytest.mark.parametrize("check", LEARNING_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("spec", LEARNING.values(), ids=LEARNING.keys())
@pytest.mark.slow
def test_learning_policy_learns(spec: PolicySpec, check: Callable[[Build], None]) -> None:
    check(builder(spec))


@pytest.mark.parametrize("check", CONTEXT_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("spec", CONTEXTUAL.values(), ids=CONTEXTUAL.keys())
def test_contextual_policy_tells_contexts_apart(spec: PolicySpec, check: Callable[[Build], None]) -> None:
    check(builder(spec))


def test_some_policies_of_vowpal_resume_exactly_and_some_do_not() -> None:
    inexact = {spec.kind for name, spec in ALL.items() if name not in EXACT}
    assert "vowpal" in inexact
    assert "vowpal" in {spec.kind for spec in EXACT.values()}
    assert inexact.isdisjoint({"uniform", "epsilon_greedy", "linucb", "linear_thompson", "neural"})


def test_every_learning_policy_is_held_to_learn() -> None:
    learning = {spec.kind for spec in CONTEXTUAL.values()}
    assert learning >= {"epsilon_greedy", "linucb", "linear_thompson", "neural", "vowpal"}
    assert learning.isdisjoint({"uniform", "fixed", "routed"})
