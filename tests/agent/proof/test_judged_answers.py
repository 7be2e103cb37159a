"""Answers that a judge grades: which are drawn, and whether what is said of all answers is true."""

from dataclasses import dataclass

import numpy as np
import pytest

from armwise.agent.proof.judged_answers import AnswerSample, compare_grades
from armwise.agent.proof.noninferiority import Ends
from armwise.feedback.arrays import Floats

ERRORS = (0.0125, 0.0042)
"""Errors of the ends where two arms share them."""


@dataclass(frozen=True)
class World:
    """A log of two arms, the grade of each answer, and ratings that are chosen by arm and answer.

    Attributes:
        chance: Probability of the reference, by a feature of the question.
        grades: Probability that an answer is good, of the other arm and of the reference.
        spread: Standard deviation of a grade around it; None: a grade is 0 or 1.
        rated: Share of the good and of the bad answers that are rated, of the other arm and of the reference.
        drift: How much worse answers of the other arm are at the end of the log.
        n: Number of decisions.
    """

    chance: tuple[float, float] = (0.1, 0.1)
    grades: tuple[float, float] = (0.7, 0.75)
    spread: float | None = 0.15
    rated: tuple[tuple[float, float], tuple[float, float]] = ((0.4, 0.05), (0.05, 0.4))
    drift: float = 0.0
    n: int = 3000

    def run(self, asked: int, seed: int, *, ratings: bool = True) -> tuple[Ends, float, AnswerSample]:
        """Return what an audit says, the truth, and its sample."""
        rng = np.random.default_rng(seed)
        p = np.where(rng.random(self.n) < 0.5, *self.chance)
        mean = np.tile(self.grades, (self.n, 1)) - np.outer(np.linspace(0.0, self.drift, self.n), [1.0, 0.0])
        drew = (rng.random(self.n) < p).astype(int)
        expected = mean[np.arange(self.n), drew]
        grade = (rng.random(self.n) < expected).astype(float)
        if self.spread is not None:
            grade = expected + rng.uniform(-self.spread, self.spread, self.n)
        good = grade > expected.mean()
        rates = np.array(self.rated)[drew, 1 - good.astype(int)]
        rating = np.where((rng.random(self.n) < rates) & ratings, good.astype(float), np.nan)
        gap, uniform = 1.0 - drew / p, rng.random(self.n)
        sample = AnswerSample.draw(np.arange(self.n), gap, 1.0 / min(self.chance) - 1.0, asked, uniform)
        truth = float(np.mean((1.0 - p) * (mean[:, 0] - mean[:, 1])))
        return compare_grades(sample, grade[sample.drawn], rating, 0.5, ERRORS), truth, sample


WORLDS = {
    "ratings by arm and answer": World(),
    "right or wrong": World(spread=None),
    "few bad answers": World(grades=(0.97, 0.99), spread=None),
    "a rare reference": World(chance=(0.02, 0.02)),
    "propensities that differ": World(chance=(0.02, 0.4)),
    "answers that become worse": World(drift=0.4),
    "a short log": World(chance=(0.3, 0.3), n=400),
}


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("asked", [60, 200])
def test_what_is_said_of_all_answers_misses_the_truth_in_less_than_one_of_twenty_audits(
    name: str, asked: int
) -> None:
    runs = [WORLDS[name].run(asked, seed)[:2] for seed in range(200)]
    missed = sum(not low <= truth <= high for (_, low, high), truth in runs)
    assert missed <= 0.03 * len(runs)
    off = [estimate - truth for (estimate, _, _), truth in runs]
    assert abs(np.mean(off)) < 4.0 * np.std(off) / len(runs) ** 0.5, "the estimate has no bias"


def test_ratings_alone_are_wrong_where_the_audit_is_right() -> None:
    rng = np.random.default_rng(1)
    good = rng.random(30_000) < 0.75
    drew = (rng.random(30_000) < 0.1).astype(int)
    rated = (
        rng.random(30_000) < np.array(WORLDS["ratings by arm and answer"].rated)[drew, 1 - good.astype(int)]
    )
    means = [good[rated & (drew == arm)].mean() for arm in (0, 1)]
    assert means[0] - means[1] > 0.5, "rated answers of the reference are bad ones"
    (_, low, high), truth, _ = World(n=30_000).run(400, 1)
    assert low <= truth <= high < 0.1


def test_the_interval_is_as_narrow_as_the_answers_that_were_judged_allow() -> None:
    for asked, most in ((200, 0.11), (1000, 0.05)):
        widths = [high - low for (_, low, high), *_ in (World().run(asked, seed) for seed in range(20))]
        assert np.mean(widths) / 2.0 < most


def test_ratings_that_are_as_the_judge_says_make_the_interval_narrower() -> None:
    world = World(spread=None, rated=((0.9, 0.9), (0.9, 0.9)), n=30_000)

    def width(*, ratings: bool) -> float:
        runs = [world.run(400, seed, ratings=ratings)[0] for seed in range(5)]
        return float(np.mean([high - low for _, low, high in runs]))

    assert width(ratings=True) < 0.6 * width(ratings=False)


def test_about_as_many_answers_are_drawn_as_were_asked_for_half_of_them_of_the_reference() -> None:
    samples = [World().run(200, seed)[2] for seed in range(40)]
    assert np.mean([one.drawn.sum() for one in samples]) == pytest.approx(200.0, abs=8.0)
    assert np.mean([(one.gap[one.drawn] < 0.0).mean() for one in samples]) == pytest.approx(0.5, abs=0.04)
    few = World(n=100, chance=(0.5, 0.5)).run(1000, 0)[2]
    assert few.drawn.all(), "there are no more"


def test_an_answer_without_a_grade_counts_as_the_worse_case() -> None:
    _, _, sample = World().run(200, 3)
    n, ratings = int(sample.drawn.sum()), np.full(3000, np.nan)
    grades = np.random.default_rng(3).random(n)
    gone = np.arange(n) < 20
    of_reference = sample.gap[sample.drawn] < 0.0

    def compare(missing: Floats | float) -> Ends:
        return compare_grades(sample, np.where(gone, missing, grades), ratings, 0.5, ERRORS)

    worst, best = compare(of_reference.astype(float)), compare(1.0 - of_reference)
    _, low, high = compare(np.nan)
    assert low < worst[1] + 0.01 < best[1]
    assert high > best[2] - 0.01 > worst[2]
    with pytest.raises(ValueError, match="grade"):
        compare(1.5)
    with pytest.raises(ValueError, match="drawn answers"):
        compare_grades(sample, grades[1:], ratings, 0.5, ERRORS)
