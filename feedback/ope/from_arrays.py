"""Evaluate a policy from arrays in one call; no log of Armwise is needed.

    found = evaluate_arrays(actions, rewards, propensities=propensities, target=target, contexts=X)
    for one in found.estimates:
        print(one.estimator, one.value)

To evaluate a log of Armwise, call `armwise.feedback.ope.evaluate`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from armwise.feedback.arrays import Floats, Integers, refuse
from armwise.feedback.logged_draws import LoggedDraws
from armwise.feedback.ope.evaluation import DEFAULT_ESTIMATORS, Evaluation, evaluate
from armwise.feedback.ope.intervals import LEVEL
from armwise.feedback.ope.reward_model import Model


def evaluate_arrays(
    actions: Any,
    rewards: Any,
    *,
    target: Any,
    propensities: Any = None,
    p_log: Any = None,
    q_hat: Any = None,
    contexts: Any = None,
    clusters: Any = None,
    names: Sequence[str] | None = None,
    estimators: Sequence[str] = DEFAULT_ESTIMATORS,
    interval: str = "normal",
    level: float = LEVEL,
    reward_range: tuple[float, float] | None = None,
    reward_model: Model | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> Evaluation:
    """Estimate what a target policy would have earned, from arrays of logged actions and rewards.

    Args:
        actions: The action of each row, shape (n,), as a column from 0.
        rewards: Reward, shape (n,), finite.
        target: Distribution of the target, shape (n, n_actions), or (n_actions,) for the same in each row.
        propensities: Probability with which the action was drawn, shape (n,), in (0, 1].
        p_log: The logged distribution, shape (n, n_actions) or (n_actions,); it gives the propensities. For
            intervals that need the largest possible weight.
        q_hat: Predicted reward of each action, shape (n, n_actions), by a model fitted without the row; by
            default `reward_model` is fitted to other rows, if an estimator reads predictions.
        contexts: Features of the rows for `reward_model`, shape (n, d), sparse or dense.
        clusters: Id of the observation that each row belongs to, such as a user, shape (n,); None: each row
            is one.
        names: Names of the actions; None: their columns.
        estimators: Names out of `armwise.feedback.ope.ESTIMATORS`.
        interval: A name out of `armwise.feedback.ope.INTERVALS`.
        level: Coverage of the intervals, in (0, 1).
        reward_range: Smallest and largest possible reward; see `armwise.feedback.ope.evaluate`.
        reward_model: `ridge`, or `means`; by default `ridge` if there are contexts.
        resamples: Number of resamples of the interval `bootstrap`.
        seed: Seed of the folds and resamples.

    Raises:
        ValueError: Shapes differ, a value is out of its range, both `propensities` and `p_log` are missing,
            or an estimator or interval is unknown.

    >>> found = evaluate_arrays([0, 1, 1, 0], [1, 0, 1, 1], propensities=[0.5] * 4, target=[1, 0],
    ...     estimators=("ips", "snips"))
    >>> [(one.estimator, one.value.value) for one in found.estimates]
    [('ips', 1.0), ('snips', 1.0)]
    """
    drawn, reward = _columns(actions, rewards)
    n = len(drawn)
    p_target = np.asarray(target, dtype=np.float64)
    n_actions = p_target.shape[-1] if p_target.ndim else 0
    if not n_actions or p_target.shape not in ((n_actions,), (n, n_actions)):
        raise ValueError(f"target must be (n_actions,) or ({n}, n_actions), got {p_target.shape}")
    p_target = _by_row("target", p_target, n, n_actions)
    refuse(
        "actions", drawn, (drawn >= 0) & (drawn < n_actions), f"columns of target, from 0 to {n_actions - 1}"
    )
    if propensities is None and p_log is None:
        raise ValueError("give propensities, or p_log with the probabilities of all actions")
    arms = tuple(map(str, range(n_actions))) if names is None else tuple(names)
    if len(arms) != n_actions or len(set(arms)) < n_actions:
        raise ValueError(
            f"names must be {n_actions} different ones, got {len(arms)}: {', '.join(arms)[:200]}"
        )
    log = LoggedDraws.from_arrays(
        arms,
        drawn,
        reward,
        propensity=None if propensities is None else _row("propensities", propensities, n),
        p_log=None if p_log is None else _by_row("p_log", np.asarray(p_log, np.float64), n, n_actions),
        groups=_codes("clusters", clusters, n),
    )
    predicted = None if q_hat is None else np.asarray(q_hat, dtype=np.float64)
    if predicted is not None and predicted.shape != (n, n_actions):
        raise ValueError(f"q_hat must be {(n, n_actions)}, got {predicted.shape}")
    return evaluate(
        log,
        {"target": p_target},
        np.random.default_rng(seed),
        estimators=estimators,
        interval=interval,
        level=level,
        reward_range=reward_range,
        reward_model=reward_model or ("means" if contexts is None else "ridge"),
        features=_contexts(contexts, n),
        q_hat=predicted,
        resamples=resamples,
    )["target"]


def _columns(actions: Any, rewards: Any) -> tuple[Integers, Floats]:
    """Return actions and rewards as arrays. Raises ValueError."""
    drawn = np.asarray(actions)
    if drawn.ndim != 1 or not len(drawn):
        raise ValueError(f"actions must be (n,) with n of at least 1, got {drawn.shape}")
    if not np.issubdtype(drawn.dtype, np.integer):
        raise ValueError(f"actions must be columns, integers from 0, got {drawn.dtype} such as {drawn[0]!r}")
    return drawn.astype(np.int64), _row("rewards", rewards, len(drawn))


def _row(name: str, values: Any, n: int) -> Floats:
    column = np.asarray(values, dtype=np.float64)
    if column.shape != (n,):
        raise ValueError(f"{name} must be ({n},), one per action, got {column.shape}")
    return column


def _by_row(name: str, p: Floats, n: int, n_actions: int) -> Floats:
    """Return distributions of shape (n, n_actions); a single one is repeated for all rows."""
    if p.shape == (n_actions,):
        return np.tile(p, (n, 1))
    if p.shape != (n, n_actions):
        raise ValueError(f"{name} must be {(n, n_actions)} or {(n_actions,)}, got {p.shape}")
    return p


def _contexts(contexts: Any, n: int) -> Any:
    if contexts is None:
        return None
    features = contexts if hasattr(contexts, "tocsr") else np.asarray(contexts, dtype=np.float64)
    if len(features.shape) != 2 or features.shape[0] != n:
        raise ValueError(f"contexts must be ({n}, d), got {features.shape}")
    return features.tocsr() if hasattr(features, "tocsr") else features


def _codes(name: str, values: Any, n: int) -> Integers | None:
    """Return ids as codes from 0, if there are any."""
    if values is None:
        return None
    shared = np.asarray(values)
    if shared.shape != (n,):
        raise ValueError(f"{name} must be ({n},), one per action, got {shared.shape}")
    codes: Integers = np.unique(shared, return_inverse=True)[1].astype(np.int64)
    return codes
