"""Large action spaces: importance weights of the features that arms share, in the place of weights of arms.

    category_weight     weights by discrete features of the arms
    select_features     choose the features to weigh by, by SLOPE

If a reward depends on an arm through its features alone, an arm that was never drawn is known from others
with the same features, and the weights are as small as those of the features. If it does not, there is a
bias; the fewer features, the more bias, and the less variance.

Source: Saito and Joachims (2022), "Off-policy evaluation for large action spaces via embeddings".
"""

import numpy as np

from armwise.feedback.arrays import Flags, Floats
from armwise.feedback.ope.sample import Sample, row_products
from armwise.feedback.ope.shrinkage import Trials, slope


def category_weight(sample: Sample, features: tuple[int, ...] | None = None) -> Floats:
    """Return the ratio of the probabilities of all arms that have the features of the drawn one, shape (n,).

    Args:
        sample: The log and the target, with `categories` and `p_log`; without categories each arm is a
            category, and these are the weights of `ips`.
        features: Indices of the features that count; None: all.

    Raises:
        ValueError: A feature is out of range.
    """
    if sample.categories is None:
        return sample.weight
    n_features = sample.categories.shape[2]
    chosen = range(n_features) if features is None else features
    alike = np.ones(sample.p_target.shape, dtype=np.bool_)
    for feature in chosen:
        if not 0 <= feature < n_features:
            raise ValueError(f"features must be columns below {n_features}, got {feature}")
        alike &= _alike(sample, feature)
    return _ratio(sample, alike)


def _alike(sample: Sample, feature: int) -> Flags:
    """Return whether each arm has the drawn arm's value of a feature, shape (n, n_arms)."""
    assert sample.categories is not None
    values = sample.categories[:, :, feature]
    same: Flags = values == values[np.arange(len(sample)), sample.drawn][:, np.newaxis]
    return same


def _ratio(sample: Sample, alike: Flags) -> Floats:
    assert sample.p_log is not None
    ratio: Floats = row_products(sample.p_target, alike) / row_products(sample.p_log, alike)
    return ratio


def select_features(sample: Sample) -> tuple[int, ...]:
    """Return the features to weigh by: all except those that SLOPE leaves out.

    Features are dropped one at a time, each time the one whose loss leaves the least variance; of the
    resulting sets SLOPE takes the one with the narrowest interval that agrees with all wider ones.

    Source: Saito and Joachims (2022), section 3.4, with `armwise.feedback.ope.shrinkage.slope`.
    """
    if sample.categories is None:
        return ()
    kept = list(range(sample.categories.shape[2]))
    flags = {feature: _alike(sample, feature) for feature in kept}

    def make_rows(features: list[int]) -> Floats:
        alike = np.logical_and.reduce([flags[feature] for feature in features])
        rows: Floats = _ratio(sample, alike) * sample.reward
        return rows

    sets, means, variances = [tuple(kept)], list[float](), list[float]()
    rows = make_rows(kept)
    means.append(float(rows.mean()))
    variances.append(float(rows.var()))
    while len(kept) > 1:
        without = [(make_rows([feature for feature in kept if feature != left]), left) for left in kept]
        rows, left = min(without, key=lambda pair: (float(pair[0].var()), pair[1]))
        kept.remove(left)
        sets.append(tuple(kept))
        means.append(float(rows.mean()))
        variances.append(float(rows.var()))
    trials = Trials(np.arange(len(sets), dtype=np.float64), np.array(means), np.array(variances), len(sample))
    return sets[slope(trials)]
