"""Print what obp says of invented slates and of arms with categories, to be frozen and compared with ours.

    /tmp/obp/bin/python benchmarks/obp_slates_golden.py > tests/comparison/golden/obp_slates.json

`benchmarks/obp_golden.py` says how the environment is made, and why values are frozen. The logs are invented
by `invent` and `invent_categories`, which `tests/comparison/test_obp_slates.py` calls too.
"""

import json

import numpy as np

CASES = [(3, 40, 2, 3), (4, 300, 3, 5), (5, 1000, 4, 6)]
"""Seed, slates, positions and items of each case; items of a slate are distinct."""

CATEGORIES = [(6, 30, 4, (2,)), (7, 400, 12, (3, 2)), (8, 2000, 40, (4, 3, 2))]
"""Seed, rows, arms and the values of each feature of an arm."""


def softmax_without(score, taken):
    """Return distributions over the items that are not taken, shape (m, n_items)."""
    weight = np.where(taken, 0.0, np.exp(score))
    return weight / weight.sum(axis=1, keepdims=True)


def invent(case):
    """Return the arrays of slates by name; each position is drawn without replacement."""
    seed, m, k, n_items = case
    rng = np.random.default_rng(seed)
    rows, taken = np.arange(m), np.zeros((m, n_items), dtype=bool)
    log, target = rng.random((m, n_items)) * 1.5, rng.random((m, n_items)) * 1.5
    items, propensity = np.zeros((m, k), dtype=np.int64), np.zeros((m, k))
    p_target = np.zeros((m, k, n_items))
    for place in range(k):
        p = softmax_without(log, taken)
        p_target[:, place] = softmax_without(target, taken)
        drawn = (p.cumsum(axis=1) < rng.random((m, 1))).sum(axis=1).clip(max=n_items - 1)
        items[:, place], propensity[:, place] = drawn, p[rows, drawn]
        taken[rows, drawn] = True
    return {
        "items": items,
        "propensity": propensity,
        "target": p_target[rows[:, np.newaxis], np.arange(k), items],
        "p_target": p_target,
        # what an item has by itself at a position; any positive numbers do for a comparison of formulas
        "marginal_propensity": 0.1 + 0.9 * rng.random((m, k)),
        "marginal_target": rng.random((m, k)),
        "reward": (rng.random((m, k)) < 0.4).astype(float),
        "q_hat": rng.random((m, k, n_items)),
    }


def invent_categories(case):
    """Return the arrays of rows whose arms have discrete features, by name."""
    seed, n, n_arms, sizes = case
    rng = np.random.default_rng(seed)
    p_log = 0.05 + rng.random((n, n_arms)) ** 3
    p_log /= p_log.sum(axis=1, keepdims=True)
    p_target = rng.random((n, n_arms)) ** 3
    p_target /= p_target.sum(axis=1, keepdims=True)
    drawn = (p_log.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1).clip(max=n_arms - 1)
    features = np.stack([(rng.random(n_arms) * size).astype(np.int64) for size in sizes], axis=1)
    return {
        "p_log": p_log,
        "p_target": p_target,
        "drawn": drawn,
        "features": features,
        "reward": (rng.random(n) < 0.3).astype(float),
    }


def checksum(arrays):
    """Return the sum of all numbers of a case."""
    return float(sum(array.sum() for array in arrays.values()))


def values(case):
    """Return what obp estimates of slates; it must be importable."""
    from obp import ope

    arrays = invent(case)
    _, m, k, n_items = case
    long = {
        "slate_id": np.repeat(np.arange(m), k),
        "position": np.tile(np.arange(k), m),
        "reward": arrays["reward"].ravel(),
    }
    whole = {
        "pscore": np.repeat(arrays["propensity"].prod(axis=1), k),
        "evaluation_policy_pscore": np.repeat(arrays["target"].prod(axis=1), k),
    }
    alone = {
        "pscore_item_position": arrays["marginal_propensity"].ravel(),
        "evaluation_policy_pscore_item_position": arrays["marginal_target"].ravel(),
    }
    cascade = {
        "pscore_cascade": arrays["propensity"].cumprod(axis=1).ravel(),
        "evaluation_policy_pscore_cascade": arrays["target"].cumprod(axis=1).ravel(),
    }
    model = {
        "action": arrays["items"].ravel(),
        "q_hat": arrays["q_hat"].ravel(),
        "evaluation_policy_action_dist": arrays["p_target"].ravel(),
    }
    inputs = {"sips": whole, "iips": alone, "rips": cascade, "cascade_dr": {**cascade, **model}}
    estimators = {
        "sips": ope.SlateStandardIPS(len_list=k),
        "iips": ope.SlateIndependentIPS(len_list=k),
        "rips": ope.SlateRewardInteractionIPS(len_list=k),
        "cascade_dr": ope.SlateCascadeDoublyRobust(len_list=k, n_unique_action=n_items),
    }
    normalized = {
        "sips": ope.SelfNormalizedSlateStandardIPS(len_list=k),
        "iips": ope.SelfNormalizedSlateIndependentIPS(len_list=k),
        "rips": ope.SelfNormalizedSlateRewardInteractionIPS(len_list=k),
    }

    def value(estimator, name):
        return float(estimator.estimate_policy_value(**long, **inputs[name]))

    return {
        "case": case,
        "checksum": checksum(arrays),
        "values": {name: value(estimator, name) for name, estimator in estimators.items()},
        "normalized": {name: value(estimator, name) for name, estimator in normalized.items()},
    }


def values_of_categories(case):
    """Return what obp estimates by MIPS, with features that are sure of each arm."""
    from obp import ope

    arrays = invent_categories(case)
    _, n, n_arms, sizes = case
    sure = np.zeros((n_arms, max(sizes), len(sizes)))
    for feature in range(len(sizes)):
        sure[np.arange(n_arms), arrays["features"][:, feature], feature] = 1.0
    estimate = ope.MarginalizedInverseProbabilityWeighting(n_actions=n_arms).estimate_policy_value(
        reward=arrays["reward"],
        action=arrays["drawn"],
        action_embed=arrays["features"][arrays["drawn"]],
        pi_b=arrays["p_log"][:, :, np.newaxis],
        action_dist=arrays["p_target"][:, :, np.newaxis],
        position=np.zeros(n, dtype=int),
        p_e_a=sure,
    )
    return {"case": case, "checksum": checksum(arrays), "mips": float(estimate)}


if __name__ == "__main__":
    document = {"slates": list(map(values, CASES)), "mips": list(map(values_of_categories, CATEGORIES))}
    print(json.dumps(document, indent=1))
