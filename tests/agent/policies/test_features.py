"""A question is described the same way each time, by what it says and how it is put."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from armwise.agent.policies.features import EmbeddingSpec, FeatureSpec, describe

SHAPE_ONLY = FeatureSpec(words=0)
WORDS_ONLY = FeatureSpec(shape=False)


@pytest.mark.parametrize(
    ("question", "shape"),
    [
        ("hastings battle 1066", "keyword"),
        ("Who won at Hastings", "question"),
        ("Is it far?", "question"),
        ("tell me of the battle", "statement"),
        ("", "keyword"),
    ],
)
def test_the_form_of_a_question_is_seen(question: str, shape: str) -> None:
    assert describe(question, SHAPE_ONLY).features[f"shape={shape}"] == 1.0


def test_marks_are_seen() -> None:
    plain = describe("name the capital", SHAPE_ONLY).features
    marked = describe('In which "city" did Marie Curie die in 1934?', SHAPE_ONLY).features
    assert marked.keys() - plain.keys() == {
        "shape=question",
        "ask=which",
        "has_mark",
        "has_digit",
        "has_quote",
        "capitals",
    }
    assert marked["capitals"] == 2 / 8
    assert marked["length"] == 9 / 32


def test_words_are_bounded_distinct_lower_case_and_without_stop_words() -> None:
    assert describe("The River of the river SEA lake", FeatureSpec(words=2, shape=False)).features == {
        "w=river": 1.0,
        "w=sea": 1.0,
    }


def test_words_of_any_script_are_features_in_one_spelling() -> None:
    asked = {
        "\u6771\u4eac\u306f\uff1f": {"\u6771", "\u6771\u4eac", "\u4eac", "\u4eac\u306f", "\u306f"},
        "\u0939\u093f\u0928\u094d\u0926\u0940 \u092e\u0947\u0902": {
            "\u0939\u093f\u0928\u094d\u0926\u0940",
            "\u092e\u0947\u0902",
        },
        "Cafe\u0301 d\u2019Or": {"caf\u00e9", "d\u2019or"},
    }
    for question, expected in asked.items():
        assert set(describe(question, WORDS_ONLY).features) == {f"w={word}" for word in expected}


def test_the_length_of_a_question_without_blanks_is_of_its_characters() -> None:
    assert describe("\u6771\u4eac\u306f\u3069\u3053", SHAPE_ONLY).features["length"] == 5 / 32


def test_what_the_caller_knows_becomes_features() -> None:
    extra: dict[str, float | str | bool] = {"tier": "free", "beta": True, "age": 1000, "score": -0.5}
    assert describe("x", FeatureSpec(words=0, shape=False), extra=extra).features == {
        "tier=free": 1.0,
        "beta=true": 1.0,
        "age": 4.0,  # by its logarithm
        "score": -0.5,
    }


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_refused_by_its_key(value: float) -> None:
    with pytest.raises(ValueError, match=f"context 'age' is {value}; a finite number was expected"):
        describe("x", SHAPE_ONLY, extra={"age": value})


@given(st.text(max_size=200))
def test_any_text_gives_finite_features_and_always_the_same(question: str) -> None:
    seen = describe(question, FeatureSpec())
    assert all(math.isfinite(value) for value in seen.features.values())
    assert seen == describe(question, FeatureSpec())


def test_random_directions_keep_angles() -> None:
    rng = np.random.default_rng(40)
    a, b = rng.normal(size=(2, 384)).astype(np.float32)
    a, b = a / np.linalg.norm(a), (a + b) / np.linalg.norm(a + b)
    spec = FeatureSpec(embedding=EmbeddingSpec(backbone="minilm", dims=256))
    reduced = [np.array(describe("x", spec, embedding=vector).embedding) for vector in (a, b)]
    assert reduced[0] @ reduced[1] / 256 == pytest.approx(float(a @ b), abs=0.2)


def test_a_missing_or_short_embedding_is_refused_by_its_backbone() -> None:
    spec = FeatureSpec(embedding=EmbeddingSpec(backbone="minilm", dims=4))
    with pytest.raises(ValueError, match="need a 'minilm' embedding"):
        describe("x", spec)
    with pytest.raises(ValueError, match="'minilm' embedding has 2 numbers, fewer than dims: 4"):
        describe("x", spec, embedding=np.ones(2, dtype=np.float32))


def test_arms_travel_with_the_context() -> None:
    arms = {"bm25": {"steps": 1.0}}
    assert describe("x", FeatureSpec(), arms=arms).arms == arms


def test_an_embedding_that_is_just_long_enough_is_reduced() -> None:
    spec = FeatureSpec(words=0, shape=False, embedding=EmbeddingSpec(backbone="b", dims=2))
    assert len(describe("?", spec, embedding=np.array([0.6, 0.8], dtype=np.float32)).embedding) == 2
