"""A class goes back once its fall is certain; a class that does not fall hardly ever does."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from armwise.agent.policies.features import FeatureSpec, describe
from armwise.feedback.guard import (
    BETS,
    ERROR,
    MOST_CLASSES,
    OTHERS,
    Fall,
    Guard,
    GuardSpec,
    Returned,
    WatchedClass,
    make_key,
)

SPEC = GuardSpec(reference="large")


def play(
    guard: Guard,
    rng: np.random.Generator,
    n: int,
    right: tuple[float, float],
    name: str = "tax",
    often: float = 1.0,
) -> tuple[int, Fall] | None:
    """Return after how many answers a class goes back.

    `right` is of what is served, and of the reference, whose answers are rated `often` times as often.
    """
    rated = often * SPEC.share / (often * SPEC.share + 1.0 - SPEC.share)
    for row in range(1, n + 1):
        drawn = bool(rng.random() < rated)
        quality = float(rng.random() < right[drawn])
        fall = guard.see(name, SPEC.share, drawn=drawn, quality=quality, example_seq=row)
        if fall is not None:
            return row, fall
    return None


@given(
    share=st.floats(0.02, 0.45),
    reference=st.floats(0.06, 1.0),
    lost=st.floats(-0.5, 0.05),
    mean=st.floats(0.01, 0.99),
)
@example(share=0.1, reference=0.9, lost=0.05, mean=0.9)
def test_no_bet_gains_on_average_while_a_class_loses_no_more_than_is_accepted(
    share: float, reference: float, lost: float, mean: float
) -> None:
    before = WatchedClass(10_000, np.ones(len(BETS)), reference=(mean, 1.0))
    stake = WatchedClass(10_000)
    stake.see(share, drawn=False, quality=0.5, limit=0.05)
    others = min(1.0, reference - lost)
    lost = reference - others
    expected = np.zeros(len(BETS))
    for drawn, right in product((True, False), repeat=2):
        chance = reference if drawn else others
        probability = (share if drawn else 1.0 - share) * (chance if right else 1.0 - chance)
        after = replace(before, capital=before.capital.copy())
        after.see(share, drawn=drawn, quality=float(right), limit=0.05)
        assert (after.capital > 0.0).all()
        expected += probability * after.capital
    gained = expected / (1.0 + 200.0 / (10_200.0 * 10_201.0))
    assert (gained <= 1.0 + 1e-9).all()
    assert (gained >= (1.0 + BETS * lost) / (1.0 + BETS * 0.05) - 1e-9).all(), "it bets as much as it may"


@given(share=st.floats(0.02, 0.45), mean=st.floats(0.01, 1.0), often=st.floats(0.05, 20.0))
def test_no_bet_gains_on_average_where_one_arm_is_rated_more_often(
    share: float, mean: float, often: float
) -> None:
    before = WatchedClass(10_000, np.ones(len(BETS)), reference=(mean, 1.0))
    expected = np.zeros(len(BETS))
    rated = often * share / (often * share + 1.0 - share)
    for drawn, right in product((True, False), repeat=2):
        after = replace(before, capital=before.capital.copy())
        after.see(share, drawn=drawn, quality=float(right), limit=0.05)
        expected += (rated if drawn else 1.0 - rated) * (mean if right else 1.0 - mean) * after.capital
    assert (expected < 1.0).all()


@pytest.mark.parametrize("often", [0.5, 2.0])
def test_a_class_stays_whose_arms_are_as_good_and_rated_unequally_often(often: float) -> None:
    for seed in range(4):
        guard, rng = Guard(SPEC), np.random.default_rng(seed)
        assert play(guard, rng, 8_000, (0.9, 0.9), often=often) is None


def test_the_whole_stake_of_all_classes_is_the_error() -> None:
    rows = np.arange(1_000_000.0)
    assert (200.0 / ((rows + 200.0) * (rows + 201.0))).sum() == pytest.approx(1.0, abs=1e-3)
    one = WatchedClass(capital=np.full(len(BETS), MOST_CLASSES / ERROR))
    assert one.see(0.1, drawn=False, quality=0.0, limit=0.05)
    one = WatchedClass(capital=np.full(len(BETS), 0.9 * MOST_CLASSES / ERROR))
    assert not one.see(0.1, drawn=False, quality=1.0, limit=0.05)


@pytest.mark.parametrize("late", [0, 2000])
def test_a_class_that_falls_by_15_points_goes_back_whenever_it_falls(late: int) -> None:
    rows = []
    for seed in range(5):
        guard, rng = Guard(SPEC), np.random.default_rng(seed)
        assert play(guard, rng, late, (0.94, 0.94)) is None
        found = play(guard, rng, 12_000, (0.79, 0.94))
        assert found is not None
        row, fall = found
        rows.append(row)
        assert (fall.key, fall.name, fall.reference) == (make_key("tax"), "tax", "large")
        assert fall.rated == late + row
        assert fall.example_seq == row
        assert 70 < fall.points < 86
        assert 88 < fall.reference_points <= 100
        assert guard.back == {fall.key}
        assert play(guard, rng, 500, (0.0, 1.0)) is None, "it is back, and watched no more"
    assert np.median(rows) < (2_500 if not late else 4_500)


@pytest.mark.parametrize("right", [(0.94, 0.94), (0.89, 0.94), (0.5, 0.5), (0.99, 0.6)])
def test_a_class_that_does_not_fall_stays(right: tuple[float, float]) -> None:
    assert [play(Guard(SPEC), np.random.default_rng(seed), 3_000, right) for seed in range(6)] == [None] * 6


def test_a_class_stays_where_all_arms_become_worse_together() -> None:
    guard, rng = Guard(SPEC), np.random.default_rng(0)
    for right in (0.95, 0.6, 0.9, 0.3, 0.8):
        assert play(guard, rng, 1_500, (right, right)) is None


def test_answers_that_could_not_be_compared_change_nothing() -> None:
    guard = Guard(SPEC)
    for share in (0.0, 0.5, 0.98, 1.0):
        assert guard.see("tax", share, drawn=share > 0.0, quality=0.0) is None
    assert not guard.classes


def test_a_guard_that_is_read_again_goes_on_as_one_that_ran_through() -> None:
    whole, rng = Guard(SPEC), np.random.default_rng(4)
    assert play(whole, rng, 700, (0.7, 0.9)) is None
    guard = Guard.from_document(SPEC, whole.document())
    assert guard.document() == whole.document()
    one, other = (play(each, np.random.default_rng(5), 9_000, (0.7, 0.9)) for each in (whole, guard))
    assert one == other != None  # noqa: E711 - neither is None
    assert Guard.from_document(SPEC, whole.document()).back == whole.back


def test_classes_beyond_the_places_are_watched_and_go_back_together() -> None:
    guard, rng = Guard(SPEC), np.random.default_rng(6)
    for number in range(MOST_CLASSES + 10):
        play(guard, rng, 5, (1.0, 1.0), f"class {number}")
    assert len(guard.classes) == MOST_CLASSES
    found = play(guard, rng, 9_000, (0.4, 1.0), "class 24")
    assert found is not None
    fall = found[1]
    assert (fall.key, fall.name) == (OTHERS, None)
    returned = Returned((fall,))
    assert [returned.has(name) for name in ("class 24", "never seen", "class 3", "class 18")] == [
        True,
        True,
        False,
        False,
    ]
    assert not Returned().has("class 24")


def test_a_fall_says_what_fell_to_those_who_may_see_it() -> None:
    fall = Fall(make_key("tax"), "tax", "large", 79.4, 93.6, 812, 9)
    assert str(fall) == (
        "Class 'tax' went back to large: rated answers of other arms got 79 of 100 points, "
        "and large's answers got 94."
    )
    assert "tax" not in fall.describe(named=False)
    assert str(replace(fall, name="")).startswith("Requests without a class went back")
    assert str(replace(fall, name=None)).startswith("All other classes went back")


def test_a_guard_with_other_settings_is_another_one_and_its_share_may_change() -> None:
    name = SPEC.name("join")
    assert GuardSpec(reference="large", share=0.2).name("join") == name
    others = [GuardSpec(reference="small"), GuardSpec(reference="large", by="task")]
    others += [GuardSpec(reference="large", least=-6), GuardSpec(reference="large", classes=("tax",))]
    assert name not in [other.name("join") for other in others] + [SPEC.name("other join")]


def test_a_text_that_is_not_listed_is_no_class() -> None:
    spec = GuardSpec(reference="large", classes=("tax", "code"))
    assert [spec.find_class({f"topic={name}": 1.0}) for name in ("tax", "code", "mine")] == [
        "tax",
        "code",
        "",
    ]
    assert SPEC.find_class({"topic=mine": 1.0}) == "mine"


def test_callers_cannot_take_the_places_of_listed_classes() -> None:
    listed = tuple(f"class {number}" for number in range(MOST_CLASSES - 2))
    spec = GuardSpec(reference="large", classes=listed)
    guard = Guard(spec)
    for name in (*(f"invented {number}" for number in range(400)), *listed):
        guard.see(spec.find_class({f"topic={name}": 1.0}), 0.1, drawn=False, quality=1.0)
    assert set(guard.classes) == {make_key(name) for name in ("", *listed)}


@pytest.mark.parametrize("by", ["w", "shape", "ask"])
def test_what_is_computed_from_a_question_is_no_class(by: str) -> None:
    features = describe("Who wrote Emma?", FeatureSpec()).features
    assert any(name.startswith(f"{by}=") for name in features)
    with pytest.raises(ValueError, match=f"'{by}' is computed from each question"):
        GuardSpec(reference="large", by=by)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"least": 0},
        {"least": -51},
        {"least": float("nan")},
        {"share": 0.5},
        {"share": 0},
        {"by": "a=b"},
        {"classes": []},
        {"classes": [str(number) for number in range(19)]},
    ],
)
def test_settings_that_guard_nothing_are_refused(wrong: dict[str, object]) -> None:
    named = {"reference": "large"} if wrong else {}
    with pytest.raises(ValueError, match="validation error"):
        GuardSpec.model_validate(named | wrong)
