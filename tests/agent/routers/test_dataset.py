"""Features and labels know their names, and refuse by name what does not fit."""

import re
from dataclasses import replace

import numpy as np
import pytest

from armwise.agent.routers.dataset import (
    ArmTable,
    Features,
    RouterError,
    RoutingDataset,
    Stage,
    TooLittleError,
    positions,
)

NAN, INF = np.nan, np.inf


def features(**changed: object) -> Features:
    """Return two questions and three arms, the first of which retrieves nothing."""
    retrieved = np.array([[[NAN, NAN], [0.1, 0.2], [0.3, 0.4]], [[NAN, NAN], [0.5, 0.6], [0.7, 0.8]]])
    whole = Features(
        ("none", "bm25", "dense"),
        ("who?", "why?"),
        ("words", "wh"),
        np.array([[1.0, 2.0], [3.0, 4.0]]),
        np.array([[1.0, 0.0], [0.0, 1.0]], dtype=np.float32),
        ArmTable(("max_sim", "moran"), retrieved),
        ArmTable(("agreement",), np.array([[[1.0], [2.0], [3.0]], [[4.0], [5.0], [6.0]]])),
    )
    return replace(whole, **changed)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"arms": ("bm25", "dense", "bm25")}, "arm 'bm25' is named twice"),
        ({"names": ("wh", "wh")}, "question feature 'wh' is named twice"),
        ({"retrieved": None}, "an answered table but no retrieved one"),
        ({"names": ("words",)}, "2 questions with 1 features have a table of shape (2, 2)"),
        ({"texts": ("who?",)}, "1 questions with 2 features have a table of shape (2, 2)"),
        ({"embedding": np.ones((3, 2), np.float32)}, "2 questions have embeddings of shape (3, 2)"),
        ({"question": np.array([[1.0, 2.0], [3.0, NAN]])}, "question feature 'wh' of 'why?' is nan"),
        ({"embedding": np.array([[1.0, INF], [0.0, 1.0]], np.float32)}, "number 1 of 'who?' is inf"),
        ({"retrieved": ArmTable(("max_sim",), np.ones((2, 2, 1)))}, "an arm table of shape (2, 2, 1)"),
    ],
)
def test_features_that_do_not_fit_are_refused(changed: dict[str, object], words: str) -> None:
    with pytest.raises(RouterError, match=re.escape(words)):
        features(**changed)


@pytest.mark.parametrize(
    ("names", "values", "words"),
    [
        (("max_sim", "moran"), np.array([[[1.0, -INF]]]), "arm feature 'moran' is infinite"),
        (("max_sim", "moran"), np.ones((1, 1, 3)), "2 names do not fit a table of shape (1, 1, 3)"),
        (("moran", "max_sim", "moran"), np.ones((1, 1, 3)), "arm feature 'moran' is named twice"),
        ((), np.ones((1, 1, 0)), "leave the table out"),
    ],
)
def test_an_arm_table_that_does_not_fit_is_refused(
    names: tuple[str, ...], values: np.ndarray, words: str
) -> None:
    with pytest.raises(RouterError, match=re.escape(words)):
        ArmTable(names, values)


@pytest.mark.parametrize(
    ("changed", "stage"),
    [
        ({}, Stage.ANSWERED),
        ({"answered": None}, Stage.RETRIEVED),
        ({"retrieved": None, "answered": None}, Stage.QUESTION),
    ],
)
def test_features_say_how_much_is_known(changed: dict[str, object], stage: Stage) -> None:
    assert features(**changed).stage is stage


@pytest.mark.parametrize("rows", [[1], np.array([1]), np.array([False, True]), range(1, 2)])
def test_rows_take_questions_by_index_or_mask(rows: object) -> None:
    some = features().rows(rows)  # type: ignore[arg-type]
    assert some.texts == ("why?",)
    assert some.question.tolist() == [[3.0, 4.0]]
    assert some.embedding.tolist() == [[0.0, 1.0]]
    assert some.retrieved is not None
    assert some.retrieved.values[0, 1].tolist() == [0.5, 0.6]
    assert some.answered is not None
    assert some.answered.values[0].tolist() == [[4.0], [5.0], [6.0]]


@pytest.mark.parametrize("rows", [[], (), range(0), np.array([]), np.zeros(2, dtype=bool)])
def test_no_rows_are_an_empty_selection(rows: object) -> None:
    none = features().rows(rows)  # type: ignore[arg-type]
    assert len(none) == 0
    assert none.question.shape == (0, 2)
    assert none.retrieved is not None
    assert none.retrieved.values.shape == (0, 3, 2)


def test_of_takes_arms_by_name_in_the_order_asked() -> None:
    some = features().select_arms(("dense", "bm25"))
    assert some.arms == ("dense", "bm25")
    assert some.retrieved is not None
    assert some.retrieved.values[0].tolist() == [[0.3, 0.4], [0.1, 0.2]]
    assert some.answered is not None
    assert some.answered.values[1].tolist() == [[6.0], [5.0]]
    with pytest.raises(RouterError, match="'dens' is unknown here; did you mean 'dense'"):
        features().select_arms(("dens",))


def test_all_arms_in_another_order_take_both_of_their_tables_along() -> None:
    every = features()
    turned = every.select_arms(every.arms[::-1])
    for table, expected in ((turned.retrieved, every.retrieved), (turned.answered, every.answered)):
        assert table is not None
        assert expected is not None
        np.testing.assert_array_equal(table.values, expected.values[:, ::-1])


def test_positions_names_what_is_unknown() -> None:
    assert positions(("a", "b", "c"), ("c", "a")) == [2, 0]
    with pytest.raises(RouterError, match="'x' is unknown here; available: a, b"):
        positions(("a", "b"), ("a", "x"))


@pytest.mark.parametrize(
    ("asked", "utility", "quality", "words"),
    [
        (features(), np.ones((2, 2)), None, "a utility of shape (2, 2)"),
        (features(), np.array([[0.0, 1.0, INF], [0.0, 1.0, 0.0]]), None, "'dense' on 'who?' is infinite"),
        (features(), np.array([[0.0, NAN, 1.0], [0.0, NAN, 0.0]]), None, "arm 'bm25' has no label at all"),
        (features(), np.array([[1.0, 1.0, NAN], [0.0, NAN, 0.0]]), None, "all 3 arms did equally well"),
        (features(), np.eye(2, 3), np.ones((2, 2)), "a quality of shape (2, 2)"),
        (
            features(),
            np.eye(2, 3),
            np.array([[0.0, -INF, 1.0]] * 2),
            "'bm25' on 'who?' is infinite",
        ),
        (features().select_arms(("bm25",)), np.ones((2, 1)), None, "labels of 1 arm (bm25)"),
        (features().rows([]), np.ones((0, 3)), None, "too few questions (none)"),
        (features().rows([1]), np.eye(1, 3), None, "too few questions ('why?')"),
    ],
)
def test_labels_that_teach_nothing_are_refused(
    asked: Features, utility: np.ndarray, quality: np.ndarray | None, words: str
) -> None:
    with pytest.raises(RouterError, match=re.escape(words)):
        RoutingDataset(asked, utility, quality)


def test_a_question_tells_arms_apart_if_two_known_ones_differ() -> None:
    utility = np.array([[NAN, 1.0, 1.0], [0.0, NAN, 1.0], [NAN, NAN, 1.0], [NAN, NAN, NAN]])
    labels = RoutingDataset(features().rows([0, 1, 0, 1]), utility)
    assert labels.telling.tolist() == [False, True, False, False]
    assert len(labels) == 4


def test_arms_that_differ_by_their_prior_tell_nothing() -> None:
    outcome = np.array([[1.0, 1.0, NAN], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    utility = outcome + np.array([0.1, 0.2, 0.3])
    labels = RoutingDataset(features().rows([0, 1, 0]), utility, without_prior=outcome)
    assert labels.telling.tolist() == [False, True, False]
    assert labels.rows([1, 0]).telling.tolist() == [True, False]
    assert RoutingDataset(labels.features, utility).telling.all()
    with pytest.raises(TooLittleError, match="all 3 arms did equally well on nearly every question"):
        labels.rows([0, 2])


def test_rows_of_labels_keep_questions_and_utilities_together() -> None:
    three = features().rows([0, 1, 0])
    labels = RoutingDataset(three, np.array([[0.0, 1.0, 0.0], [0.5, 0.0, 0.25], [1.0, 0.0, 0.0]]))
    some = labels.rows(np.array([False, True, True]))
    assert some.features.texts == ("why?", "who?")
    assert some.utility.tolist() == [[0.5, 0.0, 0.25], [1.0, 0.0, 0.0]]
