"""Large action spaces: weights of the features that arms share, in the place of weights of arms.

    category_weight     discrete features that are known of each arm
    embedding_weight    numbers that were seen of the drawn arm alone, by a classifier
    select_features     which of several features to weigh by, by SLOPE

Where a reward depends on an arm by its features alone, an arm that was never drawn is known from others that
have the same ones, and weights are as small as those of the features. Where it does not, there is a bias; the
fewer features, the more bias, and the less variance.

Source: Saito and Joachims (2022), "Off-policy evaluation for large action spaces via embeddings".
"""

from typing import Any

import numpy as np

from armwise.feedback.arrays import TOLERANCE, Flags, Floats
from armwise.feedback.ope.sample import NeverDrawnError, Sample, Terms, ones, row_products
from armwise.feedback.ope.shrinkage import Trials, slope


def category_weight(sample: Sample, features: tuple[int, ...] | None = None) -> Floats:
    """Return the ratio of the probabilities of all arms that have the features of the drawn one, shape (n,).

    Args:
        sample: The log and the target, with `categories` and `p_log`; without categories each arm is one of
            its own, and these are the weights of `ips`.
        features: Which features count; all when None.

    Raises:
        ValueError: A feature that there is not.
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
    """Return whether each arm has the value of the drawn one, shape (n, n_arms)."""
    assert sample.categories is not None
    values = sample.categories[:, :, feature]
    same: Flags = values == values[np.arange(len(sample)), sample.drawn][:, np.newaxis]
    return same


def _ratio(sample: Sample, alike: Flags) -> Floats:
    assert sample.p_log is not None
    ratio: Floats = row_products(sample.p_target, alike) / row_products(sample.p_log, alike)
    return ratio


def select_features(sample: Sample) -> tuple[int, ...]:
    """Return the features to weigh by: all, less those that SLOPE leaves out.

    Features are dropped one at a time, each time the one without which the estimate varies least; of the sets
    that result, from most features to one, SLOPE takes the narrowest that agrees with all wider ones.

    Source: Saito and Joachims (2022), section 3.4, with `armwise.feedback.ope.shrinkage.slope`.
    """
    if sample.categories is None:
        return ()
    kept = list(range(sample.categories.shape[2]))
    flags = {feature: _alike(sample, feature) for feature in kept}

    def rows_of(features: list[int]) -> Floats:
        alike = np.logical_and.reduce([flags[feature] for feature in features])
        rows: Floats = _ratio(sample, alike) * sample.reward
        return rows

    sets, means, variances = [tuple(kept)], list[float](), list[float]()
    rows = rows_of(kept)
    means.append(float(rows.mean()))
    variances.append(float(rows.var()))
    while len(kept) > 1:
        without = [(rows_of([feature for feature in kept if feature != left]), left) for left in kept]
        rows, left = min(without, key=lambda pair: (float(pair[0].var()), pair[1]))
        kept.remove(left)
        sets.append(tuple(kept))
        means.append(float(rows.mean()))
        variances.append(float(rows.var()))
    trials = Trials(np.arange(len(sets), dtype=np.float64), np.array(means), np.array(variances), len(sample))
    return sets[slope(trials)]


def embedding_weight(
    sample: Sample, embedding: Floats, rng: np.random.Generator, *, folds: int = 5, penalty: float = 1.0
) -> Floats:
    """Return the expected weight of the arm, given the embedding that was seen, shape (n,).

    A classifier, fitted on other rows, says how probable each arm is where an embedding was seen; with the
    logged distribution of the row as the prior, that gives the mean of p_target / p_log over arms.

    Args:
        sample: The log and the target, with `p_log`.
        embedding: Numbers of the drawn arm, shape (n, d), which may differ from row to row.
        rng: Source of the folds.
        folds: How many parts the rows are cut into.
        penalty: Inverse strength of the classifier's penalty, above 0.

    Raises:
        ValueError: No `p_log`, an embedding of another shape, or fewer rows than folds.

    Source: Saito and Joachims (2022), section 3.3.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    n, n_arms = sample.p_target.shape
    if sample.p_log is None:
        raise ValueError("the weight of an embedding needs p_log, the logged distribution over all arms")
    if embedding.ndim != 2 or len(embedding) != n or not np.isfinite(embedding).all():
        raise ValueError(f"embedding must be ({n}, d) and finite, got {embedding.shape}")
    if n < folds:
        raise ValueError(f"{folds} folds need as many rows, got {n}")
    possible = sample.p_log > 0.0
    if (sample.p_target[~possible] > TOLERANCE).any():
        raise ValueError("the target draws arms that the log could not draw")
    ratio = np.divide(sample.p_target, sample.p_log, out=np.zeros((n, n_arms)), where=possible)
    fold, weight = rng.permutation(n) % folds, np.empty(n)
    for part in range(folds):
        held_out, training = np.flatnonzero(fold == part), np.flatnonzero(fold != part)
        prior = np.bincount(sample.drawn[training], minlength=n_arms) / len(training)
        drawn_arms = np.flatnonzero(prior)
        chance = np.zeros((len(held_out), n_arms))
        if len(drawn_arms) == 1:
            chance[:, drawn_arms] = 1.0
        else:
            scaler = StandardScaler().fit(embedding[training])
            classifier: Any = LogisticRegression(C=penalty, max_iter=1000)
            classifier.fit(scaler.transform(embedding[training]), sample.drawn[training])
            chance[:, classifier.classes_] = classifier.predict_proba(scaler.transform(embedding[held_out]))
        chance[:, drawn_arms] *= sample.p_log[np.ix_(held_out, drawn_arms)] / prior[drawn_arms]
        total = chance.sum(axis=1)
        rows = row_products(chance, ratio[held_out])
        weight[held_out] = np.divide(rows, total, out=sample.weight[held_out].copy(), where=total > 0.0)
    return weight


def mips_by_embedding(sample: Sample, embedding: Floats, rng: np.random.Generator) -> Terms:
    """Weigh each reward by `embedding_weight`.

    Raises:
        NeverDrawnError: All weights are 0.
        ValueError: As `embedding_weight`.
    """
    weight = embedding_weight(sample, embedding, rng)
    if not weight.any():
        raise NeverDrawnError("no weight of an embedding is above 0: the value cannot be estimated")
    return Terms("mips", weight * sample.reward, ones(weight), weight)
