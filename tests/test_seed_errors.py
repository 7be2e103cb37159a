"""The error of a mean over questions and seeds: beside scipy's, and beside means that are drawn again."""

import numpy as np
import pytest
from scipy import stats

from benchmarks.seed_errors import errors


def draw(rng: np.random.Generator, shape: tuple[int, int], spread: tuple[float, float, float]) -> np.ndarray:
    """Return values whose seeds, questions and remainders vary by these standard deviations."""
    of_seed, of_question, of_both = spread
    seeds, questions = rng.normal(size=(shape[0], 1)), rng.normal(size=(1, shape[1]))
    return of_seed * seeds + of_question * questions + of_both * rng.normal(size=shape)


def test_of_one_axis_it_is_the_standard_error_of_scipy() -> None:
    values = draw(np.random.default_rng(0), (5, 300), (0.02, 0.4, 0.3))
    over_seeds, whole = errors(values)
    assert over_seeds == pytest.approx(stats.sem(values.mean(axis=1)))
    assert whole**2 - over_seeds**2 == pytest.approx(stats.sem(values.mean(axis=0)) ** 2)
    assert errors(values[:1]) == (0.0, pytest.approx(stats.sem(values[0])))


@pytest.mark.parametrize("spread", [(0.03, 0.4, 0.2), (0.0, 0.4, 0.1), (0.1, 0.1, 0.1)])
def test_it_is_the_spread_of_means_over_fresh_seeds_and_questions(spread: tuple[float, float, float]) -> None:
    rng = np.random.default_rng(1)
    drawn = [draw(rng, (8, 100), spread) for _ in range(2000)]
    told = np.mean([errors(values)[1] ** 2 for values in drawn]) ** 0.5
    counted_twice = spread[2] ** 2 / drawn[0].size
    seen = np.var([values.mean() for values in drawn])
    assert told == pytest.approx((seen + counted_twice) ** 0.5, rel=0.05)
