"""Judged pairs: what is drawn, what the intervals hold, and when a verdict is given."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from armwise.agent.proof import judged_pairs
from armwise.agent.proof.judged_pairs import JudgedPairs, Word
from armwise.feedback.arrays import Floats, Integers
from armwise.feedback.ope import confidence_sequences

SIZES = (900, 80, 20)


def judged(
    value: Floats, group: object = None, n_groups: int = 1, place: Integers | None = None, **more: object
) -> JudgedPairs:
    groups = np.zeros(len(value), dtype=np.int64) if group is None else np.asarray(group)
    return JudgedPairs(np.asarray(value, dtype=float), groups, n_groups, place, **more)  # type: ignore[arg-type]


def world(share_alike: float, difference: float, sizes: tuple[int, ...], seed: int) -> list[Floats]:
    """Return the value of each request of each class, with these shares up to rounding."""
    rng, worse = np.random.default_rng(seed), (1.0 - share_alike - difference) / 2.0
    found = []
    for n in sizes:
        value = np.zeros(n)
        ends = round(worse * n), round((1.0 - share_alike) * n)
        value[: ends[0]], value[ends[0] : ends[1]] = -1.0, 1.0
        found.append(rng.permutation(value))
    return found


def draw_values(table: list[Floats], n: int, seed: int) -> Floats:
    """Return the values of `n` draws from a file so long that it does not end."""
    groups, members, _ = judged_pairs.draw(tuple(map(len, table)), n, seed)
    return np.array([table[g][m] for g, m in zip(groups.tolist(), members.tolist(), strict=True)])


def draw_pairs(table: list[Floats], n: int, seed: int) -> JudgedPairs:
    groups, members, places = judged_pairs.draw(tuple(map(len, table)), n, seed)
    value = np.array([table[g][m] for g, m in zip(groups.tolist(), members.tolist(), strict=True)])
    return judged(value, groups, len(table), places)


def misses(found: judged_pairs.PairsComparison, truths: list[float], shares: list[float]) -> bool:
    """Whether any interval of all requests, and of each class, misses its truth."""
    ends = [
        end
        for one, truth, share in zip((found.whole, *found.groups), truths, shares, strict=True)
        if one is not None
        for end in ((one.difference, truth), (one.no_worse, share))
    ]
    return any(not low <= true <= high for (_, low, high), true in ends)


# -- draws -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(1000,), SIZES])
def test_each_request_is_drawn_once_until_the_file_ends(sizes: tuple[int, ...]) -> None:
    groups, members, places = judged_pairs.draw(sizes, 5_000, 1)
    drawn = list(zip(groups.tolist(), members.tolist(), strict=True))
    assert sorted(drawn) == [(group, member) for group, n in enumerate(sizes) for member in range(n)]
    assert sorted(places.tolist()) == list(range(1000))


def test_rare_classes_are_seen_and_all_requests_come_in_random_order() -> None:
    groups, _, places = judged_pairs.draw(SIZES, 80, 1)
    assert np.bincount(groups, minlength=3)[1:].min() >= 10, "a quarter of the draws is of the rarest classes"
    assert len(judged_pairs.find_sample(places)) >= 60
    third = np.zeros(8)
    for seed in range(4_000):
        groups, members, places = judged_pairs.draw((5, 3), 8, seed)
        at = judged_pairs.find_sample(places)[2]
        third[5 * groups[at] + members[at]] += 1
    assert np.abs(third / 4_000 - 0.125).max() < 0.02


def test_more_draws_begin_with_the_same_ones() -> None:
    few, many = judged_pairs.draw(SIZES, 50, 3), judged_pairs.draw(SIZES, 500, 3)
    assert [column.tolist() for column in few] == [column.tolist()[:50] for column in many]
    assert judged_pairs.draw(SIZES, 50, 4)[1].tolist() != few[1].tolist()


# -- intervals ---------------------------------------------------------------------------------------


def test_bounds_of_a_mean_are_those_of_the_product_of_bets() -> None:
    """Bisection finds the mean at which the mixture of all bets reaches 1 / error."""
    values = np.random.default_rng(5).choice([-2.0, 0.0, 1.0], size=300)
    found = confidence_sequences.compute_lower_ends(values, 2.0, 0.01)
    for n in (1, 10, 299):
        low, high = -2.0, 2.0
        for _ in range(60):
            mean = (low + high) / 2.0
            bets = confidence_sequences.BETS[:, np.newaxis]
            products = np.prod((1.0 + bets * values[: n + 1] / 2.0) / (1.0 + bets * mean / 2.0), axis=1)
            low, high = (mean, high) if products.mean() > 100.0 else (low, mean)
        assert found[n] <= low + 1e-6
        assert found[n] == pytest.approx(low, abs=0.02)


def test_a_random_order_passes_an_end_at_some_look_less_often_than_the_error_says() -> None:
    """All orders of a file are enumerated, with verdicts that are better, equal or worse."""
    for better, equal, worse in ((6, 0, 14), (12, 0, 18), (10, 10, 10), (25, 0, 25), (20, 5, 25), (3, 40, 7)):
        for error in (0.5, 0.2, 0.0125):
            assert compute_chance_of_a_miss((better, equal, worse), error) <= error / 2.0


def compute_chance_of_a_miss(counts: tuple[int, int, int], error: float) -> float:
    """Return the share of the orders of a file in which a lower end ever exceeds its mean."""
    n, mean = sum(counts), (counts[0] - counts[2]) / sum(counts)
    drawn = np.indices([count + 1 for count in counts])
    bets = confidence_sequences.BETS.reshape(-1, 1, 1, 1)
    capital = sum(
        count * np.log1p(bets * value) for count, value in zip(drawn, (1.0, 0.0, -1.0), strict=True)
    )
    capital = np.exp(capital - drawn.sum(axis=0) * np.log1p(bets * mean)).mean(axis=0)
    chance, missed = np.zeros(capital.shape), 0.0
    chance[0, 0, 0] = 1.0
    for left in range(n, 0, -1):
        steps = chance[np.newaxis] * (np.reshape(counts, (3, 1, 1, 1)) - drawn) / left
        chance = sum(np.roll(step, 1, axis=axis) for axis, step in enumerate(steps))
        missed += float(chance[capital >= 1.0 / error].sum())
        chance[capital >= 1.0 / error] = 0.0
    return missed


@pytest.mark.parametrize("sizes", [(50,), (100,), (35, 12, 3), (60, 30, 10)])
@pytest.mark.parametrize("judge", ["guesses", "guesses half"])
def test_intervals_of_a_small_file_hold_to_its_end(sizes: tuple[int, ...], judge: str) -> None:
    """The last interval is within all before it. How often a judge that guesses is right is not known."""
    missed, runs = 0, 200
    for seed in range(runs):
        rng, sure = np.random.default_rng([seed, 1]), 1.0 if judge == "guesses" else 0.5
        truth = [np.where(rng.random(n) < sure, 0.0, rng.choice([-1.0, 0.0, 1.0], size=n)) for n in sizes]
        said = [np.where(one == 0.0, rng.choice([-1.0, 1.0], size=len(one)), one) for one in truth]
        share = [np.where(one == 0.0, 0.5, one >= 0.0) for one in truth]
        means, shares = (
            [float(np.concatenate(table).mean()), *(float(one.mean()) for one in table if len(table) > 1)]
            for table in (truth, share)
        )
        missed += misses(judged_pairs.compare(draw_pairs(said, 800, seed)), means, shares)
    assert missed <= 0.03 * runs


def test_all_intervals_of_a_long_file_hold_at_all_looks() -> None:
    failed = 0
    for seed in range(60):
        table = world(0.7, -0.05, SIZES, seed)
        every = [np.concatenate(table), *table]
        truths, shares = [float(one.mean()) for one in every], [float((one >= 0).mean()) for one in every]
        failed += misses(judged_pairs.compare(draw_pairs(table, 400, seed)), truths, shares)
    assert failed <= 3


def test_the_estimate_is_the_mean_over_requests_whatever_the_classes() -> None:
    table = [np.zeros(900), np.full(80, -1.0), np.full(20, -0.5)]
    found = judged_pairs.compare(draw_pairs(table, 5_000, 7))
    truth = float(np.concatenate(table).mean())
    assert found.whole.difference[0] == pytest.approx(truth)
    assert found.whole.no_worse[0] == pytest.approx(0.9)
    assert [one.difference[0] for one in found.groups if one] == [0.0, -1.0, -0.5]
    some = [judged_pairs.compare(draw_pairs(table, 200, seed)).whole.difference[0] for seed in range(60)]
    assert np.mean(some) == pytest.approx(truth, abs=0.01), "draws of rare classes do not count twice"


def test_a_class_that_was_not_drawn_has_no_figures() -> None:
    found = judged_pairs.compare(judged(np.zeros(5), np.zeros(5, dtype=np.int64), 3))
    assert found.groups[0] is not None
    assert found.groups[1:] == (None, None)


def test_an_unknown_verdict_counts_against_either_claim() -> None:
    rng = np.random.default_rng(8)
    known = rng.choice([-1.0, 0.0, 1.0], p=[0.1, 0.8, 0.1], size=400)
    some = np.where(rng.random(400) < 0.1, np.nan, known)
    whole = judged_pairs.compare(judged(some)).whole
    worst, best = (judged_pairs.compare(judged(np.where(np.isnan(some), v, some))).whole for v in (-1.0, 1.0))
    assert whole.difference[1:] == (worst.difference[1], best.difference[2])
    assert whole.no_worse[1:] == (worst.no_worse[1], best.no_worse[2])
    assert whole.difference[0] == pytest.approx(float(np.nanmean(some)))


@pytest.mark.parametrize(
    "bad", [{"value": [1.5]}, {"value": []}, {"labels": np.zeros(2)}, {"labels": np.array([2.0])}]
)
def test_impossible_pairs_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"value|labels"):
        judged(np.array(bad.pop("value", [0.0])), **bad)


@pytest.mark.parametrize("sizes", [(1000,), SIZES])
@pytest.mark.parametrize("labelled", [0, 50])
def test_all_ends_share_one_error(
    monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...], labelled: int
) -> None:
    errors = list[float]()
    compute = confidence_sequences.compute_lower_ends

    def note(values: Floats, scale: float, error: float, **more: Any) -> Floats:
        errors.append(error)
        return compute(values, scale, error, **more)

    monkeypatch.setattr(confidence_sequences, "compute_lower_ends", note)
    found = draw_pairs(world(0.8, 0.0, sizes, 51), 300, 51)
    labels = found.value[found.of_all][:labelled] if labelled else None
    judged_pairs.compare(replace(found, labels=labels))
    by_judge = (
        judged_pairs.ERROR * (judged_pairs.LOWER_SHARE + judged_pairs.UPPER_SHARE) / 2.0 if labelled else 0.0
    )
    assert sum(errors) == pytest.approx(judged_pairs.ERROR + by_judge), (
        "the ends by the judge are computed twice"
    )


# -- verdicts ----------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.5, 1.0]), min_size=1, max_size=60),
    st.sampled_from([0.02, 0.05, 0.3]),
    st.integers(1, 20),
)
def test_a_verdict_once_given_does_not_turn_into_the_other(
    values: list[float], margin: float, repeat: int
) -> None:
    every = np.tile(values, repeat)
    found = [
        judged_pairs.decide(judged_pairs.compare(judged(every[:n])).whole.difference, margin)
        for n in range(1, len(every) + 1, max(1, len(every) // 25))
    ]
    given_words = [word for word in found if word is not Word.NOT_YET]
    assert all(one is other for one, other in itertools.pairwise(given_words))


def test_ends_only_come_closer_unless_what_is_compared_may_change() -> None:
    value = np.concatenate([np.ones(200), np.full(300, -1.0)])
    lows = [judged_pairs.compare(judged(value[:n])).whole.difference[1] for n in range(50, 500, 50)]
    assert lows == sorted(lows)
    moving = [judged_pairs.compare(judged(value[:n], moves=True)).whole.difference[1] for n in (200, 500)]
    assert moving[1] < 0.0 < moving[0]


def test_a_challenger_as_good_gets_switch_and_a_bad_one_keep() -> None:
    for difference, expected in ((0.0, Word.SWITCH), (-0.2, Word.KEEP)):
        value = draw_values(world(0.8, difference, (3000,), 11), 1500, 11)
        assert judged_pairs.decide(judged_pairs.compare(judged(value)).whole.difference, 0.05) is expected


def test_false_verdicts_are_rare_where_the_loss_is_just_beyond_the_margin() -> None:
    false = 0
    for seed in range(100):
        value = draw_values(world(0.85, -0.06, (1000,), 100 + seed), 600, seed)
        truth_is_beyond = float(np.concatenate(world(0.85, -0.06, (1000,), 100 + seed)).mean()) < -0.05
        low = confidence_sequences.compute_lower_ends(
            value, 1.0, judged_pairs.ERROR * judged_pairs.LOWER_SHARE, moves=False
        )[-1]
        false += truth_is_beyond and low > -0.05
    assert false <= 3


# -- labels ------------------------------------------------------------------------------------------


def test_labels_correct_a_judge_that_always_prefers_the_challenger() -> None:
    truth = draw_values(world(0.6, -0.3, (3000,), 21), 3000, 21)
    kind = np.maximum(truth, 0.0)
    assert judged_pairs.decide(judged_pairs.compare(judged(kind)).whole.difference, 0.05) is Word.SWITCH
    found = judged_pairs.compare(judged(kind, labels=truth[:1500]))
    assert judged_pairs.decide(found.whole.difference, 0.05) is Word.KEEP
    assert found.whole.difference[0] == pytest.approx(float(truth.mean()), abs=0.05)
    alone = judged_pairs.compare(judged(kind)).whole.difference
    assert found.by_judge is not None
    assert found.by_judge[0] == alone[0]
    assert found.by_judge[1] < alone[1] < alone[2] < found.by_judge[2], "half of the error goes to the labels"


def test_few_labels_make_the_interval_wider_not_narrower() -> None:
    value = draw_values(world(0.8, 0.0, (1000,), 22), 800, 22)
    alone, few, many = (
        judged_pairs.compare(judged(value, labels=labels)).whole.difference
        for labels in (None, value[:20], value[:700])
    )
    width = [high - low for _, low, high in (alone, few, many)]
    assert width[0] < width[2] < width[1]


def test_a_label_that_was_asked_and_not_given_counts_as_the_worse_case() -> None:
    value = draw_values(world(0.8, 0.0, (1000,), 23), 800, 23)
    labels = value[:400].copy()
    labels[::10] = np.nan
    _, low, high = judged_pairs.compare(judged(value, labels=labels)).whole.difference
    worst, best = (
        judged_pairs.compare(judged(value, labels=np.where(np.isnan(labels), v, labels))).whole.difference
        for v in (-1.0, 1.0)
    )
    assert (low, high) == (worst[1], best[2])


# -- forecasts ---------------------------------------------------------------------------------------


def test_a_forecast_is_right_within_a_factor_of_two_about_the_pairs_that_it_takes() -> None:
    right = 0
    for seed in range(12):
        value = draw_values(world(0.8, -0.2, (6000,), 200 + seed), 6000, seed)
        high = -confidence_sequences.compute_lower_ends(
            -value, 1.0, judged_pairs.ERROR * judged_pairs.UPPER_SHARE, moves=False
        )
        needed = int(np.argmax(high < -0.1)) + 1 - 60
        found = judged_pairs.forecast_more(judged(value[:60]), 0.1)
        assert found is not None
        right += found[0] / 2.0 <= needed <= 2.0 * found[1]
    assert right >= 10


def test_a_forecast_is_longer_for_a_smaller_margin_and_ends_somewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    value = draw_values(world(0.8, 0.0, (1000,), 31), 200, 31)
    wide, narrow = (judged_pairs.forecast_more(judged(value), margin) for margin in (0.2, 0.05))
    assert wide is not None
    assert narrow is not None
    assert wide[0] < narrow[0] < narrow[1] <= judged_pairs.MOST_MORE
    monkeypatch.setattr(judged_pairs, "MOST_MORE", wide[0] - 1)
    assert judged_pairs.forecast_more(judged(value), 0.2) is None


def test_a_forecast_counts_the_pairs_that_go_to_rare_classes() -> None:
    table = world(0.9, 0.0, SIZES, 41)
    found = draw_pairs(table, 200, 41)
    several, alone = (
        judged_pairs.forecast_more(one, 0.05) for one in (found, judged(found.value[found.of_all]))
    )
    assert several is not None
    assert alone is not None
    assert several[0] == pytest.approx(alone[0] * judged_pairs.EVERY / (judged_pairs.EVERY - 1), abs=1.5)
