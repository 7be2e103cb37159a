"""Other words for a question: names stay, and length has a bound."""

import json
from hashlib import sha256

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from armwise.arms.lab.synthesis.extraction import SYNONYMS, VERSION, reword

WORDS = st.lists(
    st.sampled_from(["film", "Faust", "of", "Goethe", "begin", "zwieback", "in"]), min_size=2, max_size=25
)


@given(WORDS, st.integers(0, 99))
def test_no_name_is_added_or_changed(words: list[str], seed: int) -> None:
    text = reword(f"Is {' '.join(words)}?", lambda _: False, np.random.default_rng(seed), cut=False)
    assert [word for word in text.rstrip("?").split()[1:] if word[0].isupper()] == [
        word for word in words if word[0].isupper()
    ]


@given(WORDS, st.integers(0, 99))
def test_a_question_is_cut(words: list[str], seed: int) -> None:
    plain = [word for word in words if word not in SYNONYMS]
    text = reword(f"Is {' '.join(plain)}?", lambda _: False, np.random.default_rng(seed))
    assert text.endswith("?")
    assert len(text.split()) <= 12


def test_half_of_the_rare_words_are_forgotten() -> None:
    kept = [
        "zwieback"
        in reword("Is Faust zwieback Goethe?", lambda word: word == "zwieback", np.random.default_rng(seed))
        for seed in range(400)
    ]
    assert abs(np.mean(kept) - 0.5) < 0.1  # four standard deviations


def test_the_same_draw_makes_the_same_question() -> None:
    text = "When did the film begin in Rome?"
    one, two = (reword(text, lambda _: False, np.random.default_rng(7)) for _ in range(2))
    assert one == two


def test_other_synonyms_are_another_version_of_the_rules() -> None:
    digest = sha256(json.dumps(SYNONYMS, sort_keys=True).encode()).hexdigest()
    assert (VERSION, len(SYNONYMS), digest[:16]) == ("2", 125, "cfee7e0f44422455")
