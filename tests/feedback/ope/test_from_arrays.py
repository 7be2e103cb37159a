"""Arrays in, estimates with intervals out: the same as through a log, and clear errors."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from armwise.feedback.logged_draws import LoggedDraws
from armwise.feedback.ope import EstimatorResult, evaluate, evaluate_arrays
from benchmarks.obp_golden import CASES, Case, invent
from tests.comparison.test_obp import GOLDEN

RNG = np.random.default_rng(1)
N = 60
P_LOG = RNG.dirichlet(np.full(3, 3.0), N)
ACTIONS = (P_LOG.cumsum(axis=1) < RNG.random((N, 1))).sum(axis=1)
REWARDS = (RNG.random(N) < 0.3 + 0.2 * ACTIONS).astype(float)
TARGET = RNG.dirichlet(np.full(3, 3.0), N)
PROPENSITIES = P_LOG[np.arange(N), ACTIONS]
CONTEXTS = RNG.normal(size=(N, 4))


def found(**options: Any) -> dict[str, EstimatorResult]:
    asked = {"actions": ACTIONS, "rewards": REWARDS, "target": TARGET, "p_log": P_LOG, **options}
    return {one.estimator: one for one in evaluate_arrays(**asked).estimates}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_values_are_those_of_obp(case: Case) -> None:
    arrays, frozen = invent(case), GOLDEN[case.name]["values"]
    names = [name for name, value in frozen.items() if not isinstance(value, list)]
    result = evaluate_arrays(
        *(arrays["drawn"], arrays["reward"]),
        propensities=arrays["propensity"],
        target=arrays["p_target"],
        q_hat=arrays["q_hat"],
        estimators=names,
    )
    values = {one.estimator: one.value.value for one in result.estimates if one.value}
    assert values == pytest.approx({name: frozen[name] for name in names}, abs=1e-9)
    assert {"ips", "snips", "dm", "dr"} <= values.keys()


@pytest.mark.parametrize("interval", ["normal", "bootstrap"])
@pytest.mark.slow
def test_it_is_an_evaluation_of_the_log_of_the_arrays(interval: str) -> None:
    names = ("ips", "snips", "dr", "switch_dr")
    log = LoggedDraws.from_arrays(("0", "1", "2"), ACTIONS, REWARDS, p_log=P_LOG)
    expected = evaluate(
        log, {"t": TARGET}, np.random.default_rng(3), estimators=names, interval=interval, features=CONTEXTS
    )["t"]
    options = {"estimators": names, "interval": interval, "seed": 3}
    for contexts in (CONTEXTS, CONTEXTS.tolist(), sparse.coo_array(CONTEXTS)):
        assert tuple(found(contexts=contexts, **options).values()) == expected.estimates
    assert tuple(found(contexts=CONTEXTS, **{**options, "seed": 4}).values()) != expected.estimates
    assert tuple(found(**options).values()) != expected.estimates, "which predicts by means"


def test_one_distribution_is_that_of_each_row_and_lists_are_arrays() -> None:
    one = found(target=[0.2, 0.3, 0.5], p_log=None, propensities=PROPENSITIES.tolist())
    assert one == found(target=np.tile([0.2, 0.3, 0.5], (N, 1)), p_log=None, propensities=PROPENSITIES)
    assert found(p_log=[0.2, 0.3, 0.5])["ips"] == found(p_log=np.tile([0.2, 0.3, 0.5], (N, 1)))["ips"]


def test_rows_of_a_cluster_are_one_observation() -> None:
    twice = {
        name: np.repeat(array, 2, axis=0)
        for name, array in {"actions": ACTIONS, "rewards": REWARDS, "target": TARGET, "p_log": P_LOG}.items()
    }
    users = np.repeat([f"user {i}" for i in range(N)], 2)
    alone, blind, clustered = (
        found(estimators=("ips",))["ips"].value,
        found(estimators=("ips",), **twice)["ips"].value,
        found(estimators=("ips",), clusters=users, **twice)["ips"].value,
    )
    assert alone is not None
    assert blind is not None
    assert clustered is not None
    assert alone.value == pytest.approx(blind.value) == pytest.approx(clustered.value)
    assert clustered.high - clustered.low == pytest.approx(alone.high - alone.low, rel=0.25)
    assert blind.high - blind.low < 0.85 * (clustered.high - clustered.low)
    assert found(clusters=np.arange(N)[::-1])["ips"] == found()["ips"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"actions": []}, r"actions must be \(n,\) with n of at least 1, got \(0,\)"),
        ({"actions": ACTIONS[:, np.newaxis]}, r"actions must be \(n,\)"),
        ({"actions": ACTIONS.astype(float)}, "actions must be columns, integers from 0, got float64"),
        ({"actions": ["a"] * N}, "actions must be columns, integers from 0, got <U1 such as"),
        ({"actions": ACTIONS + 1}, "actions must be columns of target, from 0 to 2, got 3"),
        ({"rewards": REWARDS[1:]}, r"rewards must be \(60,\), one per action, got \(59,\)"),
        ({"rewards": REWARDS * np.nan}, "reward must be finite, got nan at row 0"),
        ({"target": TARGET[1:]}, r"target must be \(n_actions,\) or \(60, n_actions\), got \(59, 3\)"),
        ({"target": 1.0}, r"target must be \(n_actions,\) or \(60, n_actions\), got \(\)"),
        ({"target": TARGET * 0.5}, "sum of target must be 1, got 0.5 at row 0"),
        ({"p_log": None}, "give propensities, or p_log"),
        ({"p_log": P_LOG[:, :2]}, r"p_log must be \(60, 3\) or \(3,\), got \(60, 2\)"),
        ({"p_log": None, "propensities": PROPENSITIES[1:]}, r"propensities must be \(60,\)"),
        (
            {"p_log": None, "propensities": PROPENSITIES * 0.0},
            r"propensity must be in \(0, 1\], got 0 at row 0",
        ),
        ({"propensities": PROPENSITIES * 0.5}, "propensity must be the value of p_log for the drawn arm"),
        ({"q_hat": P_LOG[1:]}, r"q_hat must be \(60, 3\), got \(59, 3\)"),
        ({"contexts": CONTEXTS[1:]}, r"contexts must be \(60, d\), got \(59, 4\)"),
        ({"clusters": [1, 2]}, r"clusters must be \(60,\), one per action, got \(2,\)"),
        ({"names": ("a", "b")}, "names must be 3 different ones, got 2: a, b"),
        ({"names": ("a", "b", "a")}, "names must be 3 different ones"),
        ({"estimators": ("dq",)}, "unknown estimator 'dq'; available: ips"),
        ({"interval": "wide"}, "unknown interval 'wide'; available: normal"),
    ],
)
def test_arrays_that_cannot_be_right_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        found(**changes)


@pytest.mark.slow
def test_the_library_loads_nothing_heavy() -> None:
    script = "import sys, armwise.feedback.ope; print([m for m in {heavy} if m in sys.modules])".format(
        heavy=("sqlalchemy", "ray", "sklearn", "scipy", "torch", "fastapi", "pyarrow")
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
