"""The input of policies: checks, and the columns of a question."""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from armwise.agent.policies.base import PolicyError
from armwise.feedback.events import ROUTER, SIMILARITY, Context, Decision
from armwise.feedback.texts import by_pseudonym, find_value, pseudonym


def check_whole(least: int, **settings: int) -> None:
    """Check that settings are integers of at least `least`.

    Raises:
        PolicyError: A setting is not; the message names it.
    """
    for name, value in settings.items():
        if not isinstance(value, int) or value < least:
            raise PolicyError(f"{name} {value!r} is not an integer of at least {least}")


def check_context(context: Context) -> None:
    """Check that all features are finite, because one NaN would spread to every weight.

    Raises:
        PolicyError: A feature is not finite; the message names it.
    """
    # A sum is fast, and not finite if a feature is not. Only then is that feature searched for.
    total = sum(context.features.values()) + sum(context.embedding)
    for features in context.arms.values():
        total += sum(features.values())
    if not math.isfinite(total):
        for name, value in _list_numbers(context):
            if not math.isfinite(value):
                raise PolicyError(f"{name} is {value}; a finite number was expected")


def check_reward(decision: Decision, reward: float) -> None:
    """Check that a policy can learn from a decision.

    Raises:
        PolicyError: The reward or a feature is not finite, or the drawn arm was not eligible.
    """
    if not math.isfinite(reward):
        raise PolicyError(f"reward {reward} of decision {decision.id!r} is not finite")
    if decision.drawn not in decision.arms:
        arms = ", ".join(decision.arms)
        raise PolicyError(f"decision {decision.id!r} drew {decision.drawn!r}, which is not among: {arms}")
    check_context(decision.context)


def prior_scores(context: Context, arms: Sequence[str], name: str | None) -> NDArray[np.float64]:
    """Return the feature that is each arm's expected reward, NaN for an arm without it, shape (n_arms,).

    Args:
        context: The features.
        arms: The arms.
        name: Name of the feature. The score of a router is replaced by the similarity of the question to the
            arms' sources if no arm has a score, unless it is equal, as for arms that search the same source.
            None: all NaN.
    """
    unknown = np.full(len(arms), math.nan)
    if name is None or not any(context.arms.values()):
        return unknown
    for feature in (ROUTER, SIMILARITY) if name == ROUTER else (name,):
        scores = np.array([find_value(context.arms.get(arm, {}), feature, math.nan) for arm in arms])
        least = 2 if feature == SIMILARITY else 1  # of an equal one, nothing follows
        if len(set(scores[~np.isnan(scores)].tolist())) >= least:
            return scores
    return unknown


def hash_features(features: Mapping[str, float], dims: int) -> list[float]:
    """Add up named features in a fixed number of columns; a hash of the name gives its column and sign.

    A name and its pseudonym have the same column. Names that collide disturb each other; with random signs,
    the errors cancel on average.

    Args:
        features: Finite numbers by name.
        dims: Number of columns; 0 leaves named features out.

    Source: Weinberger et al. 2009, Feature hashing for large scale multitask learning,
    arXiv:0902.2206.

    >>> hash_features({"words": 2.0, "steps": 0.5}, 4)
    [-2.0, 0.5, 0.0, 0.0]
    """
    row = [0.0] * dims
    if dims:
        for name, value in by_pseudonym(features).items():
            column, sign = _slot(name, dims)
            row[column] += sign * value
    return row


def question_columns(context: Context, dims: int, n: int | None) -> list[float]:
    """Return the named features of a question, hashed into columns, and its embedding after them.

    Args:
        context: The question.
        dims: Columns of the named features.
        n: Columns of earlier questions, if there were any.

    Raises:
        PolicyError: The embedding differs in length from earlier ones.

    >>> question_columns(Context("?", {"steps": 0.5}, (0.1, 0.2)), 4, 6)
    [0.0, 0.5, 0.0, 0.0, 0.1, 0.2]
    """
    columns = [*hash_features(context.features, dims), *context.embedding]
    if n is not None and len(columns) != n:
        raise PolicyError(
            f"an embedding of {n - dims} numbers was expected, as before; got {len(context.embedding)}"
        )
    return columns


@lru_cache(maxsize=100_000)
def _slot(name: str, dims: int) -> tuple[int, float]:
    number = int(pseudonym(name).removeprefix("#"), 16)
    return (number >> 1) % dims, 1.0 if number & 1 else -1.0


def _list_numbers(context: Context) -> Iterator[tuple[str, float]]:
    for name, value in context.features.items():
        yield f"feature {name!r}", value
    for i, value in enumerate(context.embedding):
        yield f"number {i} of the embedding", value
    for arm, features in context.arms.items():
        for name, value in features.items():
            yield f"feature {name!r} of arm {arm!r}", value
