"""Words of texts in all scripts: which spellings are one word, and where words begin and end."""

import itertools
import time
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from armwise.arms.tokenizer import count_words, fold, split_words, words

NO_TEXT = {"Cn", "Cs", "Co"}
"""Categories without characters that text has; a library may have given some of the first a meaning."""

CHARACTERS = [
    character
    for code in itertools.chain(
        range(0x3400), range(0xA800, 0xAC10), range(0xF900, 0x10500), range(0x1D400, 0x1F252)
    )
    if unicodedata.category(character := chr(code)) not in NO_TEXT
]
"""Characters of most scripts; a few ideographs and Korean syllables stand for all."""

ANY_SCRIPT = st.text(
    st.sampled_from("aZé\u00ad\u0301\u0130ß\u2122\uff21 _-")
    | st.sampled_from("\u4e2d\u6587\u3042\u30ac\u0e01\u0e33\ud55c\u0928\u094d\u0926\u0643\u064e")
)


def test_no_character_has_other_words_where_it_is_decomposed() -> None:
    assert [c for c in CHARACTERS if words(unicodedata.normalize("NFD", c)) != words(c)] == []


@pytest.mark.slow
def test_no_character_has_other_words_beside_another_script() -> None:
    assert [c for c in CHARACTERS if words(f"\u4e2d {c}") != ["\u4e2d", *words(c)]] == []


def test_folding_again_changes_no_character() -> None:
    assert [c for c in CHARACTERS if fold(fold(c)) != fold(c)] == []


@given(ANY_SCRIPT)
@example("\u0e01\u0e33")
@example("\u0643\u064e\u0640\u0651")
def test_a_text_and_its_canonical_forms_have_the_same_words(text: str) -> None:
    assert (
        words(unicodedata.normalize("NFD", text)) == words(text) == words(unicodedata.normalize("NFC", text))
    )


@given(ANY_SCRIPT, ANY_SCRIPT)
def test_a_blank_separates_words(left: str, right: str) -> None:
    assert words(f"{left} {right}") == words(left) + words(right)
    assert words(f"{left}\u2060{right}") == words(left + right)


@given(ANY_SCRIPT)
def test_every_letter_of_a_text_is_in_a_word(text: str) -> None:
    letters = {c for c in fold(text) if c.isalnum()}
    assert letters == {c for word in words(text) for c in word if c.isalnum()}


@pytest.mark.parametrize(
    ("spelled", "again"),
    [
        ("cafe\u0301", "CAF\u00c9"),
        ("Stra\u00dfe", "STRASSE"),
        ("co\u00adoperation", "cooperation"),
        ("\uff34\uff4f\uff4b\uff59\uff4f", "Tokyo"),
        ("\uff76\uff9e\uff72\uff84\uff9e", "\u30ac\u30a4\u30c9"),
        ("\u0645\u064f\u062d\u064e\u0645\u0651\u064e\u062f", "\u0645\u062d\u0645\u062f"),
        ("\u0623\u062d\u0645\u062f", "\u0627\u062d\u0645\u062f"),
        ("\u0643\u062a\u0640\u0640\u0627\u0628", "\u0643\u062a\u0627\u0628"),
        ("\u05e9\u05c1\u05b8\u05dc\u05d5\u05b9\u05dd", "\u05e9\u05dc\u05d5\u05dd"),
        ("\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", "\u0645\u06cc\u062e\u0648\u0627\u0647\u0645"),
        ("\u0967\u096f\u096a\u096d", "1947"),
        ("\u845b\U000e0100\u57ce", "\u845b\u57ce"),
        ("\u1112\u1161\u11ab", "\ud55c"),
    ],
)
def test_two_spellings_of_a_word_are_one(spelled: str, again: str) -> None:
    assert words(spelled) == words(again) != []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "\u0939\u093f\u0928\u094d\u0926\u0940 \u092e\u0947\u0902",
            ["\u0939\u093f\u0928\u094d\u0926\u0940", "\u092e\u0947\u0902"],
        ),
        ("\u6771\u4eac\u90fd", ["\u6771", "\u6771\u4eac", "\u4eac", "\u4eac\u90fd", "\u90fd"]),
        ("iPhone\u624b\u6a5f", ["\u624b", "\u624b\u6a5f", "\u6a5f", "phone", "iphone"]),
        ("\u9b5a\u3002\u80c9", ["\u9b5a", "\u80c9"]),
        ("\u30bf\u30ef\u30fc", ["\u30bf", "\u30bf\u30ef", "\u30ef", "\u30ef\u30fc", "\u30fc"]),
        ("\uc11c\uc6b8 \uc740", ["\uc11c", "\uc11c\uc6b8", "\uc6b8", "\uc740"]),
        (
            "\u0e01\u0e31\u0e1a\u0e14",
            ["\u0e01\u0e31", "\u0e01\u0e31\u0e1a", "\u0e1a", "\u0e1a\u0e14", "\u0e14"],
        ),
        ("a\u200bb", ["a", "b"]),
        ("Windows\u2122 5\u338f", ["windows", "tm", "5", "kg"]),
        ("read_file(x), don't", ["read", "file", "x", "read_file", "don", "t"]),
        ("\u0301\u0301 !", []),
        ("loadHTMLPage2Go()", ["load", "html", "page2", "go", "loadhtmlpage2go"]),
        ("allIDs, MAX_AGE", ["all", "ids", "allids", "max", "age", "max_age"]),
        ("__slots__ a.B", ["slots", "a", "b", "a.b"]),
        ("F# and c++20 (G++)", ["f#", "and", "20", "c++", "g++"]),
        ("\u4e2dC#\u4e2d", ["\u4e2d", "\u4e2d", "c#"]),
        ("libpng++, .env ...and", ["libpng", "libpng++", "env", ".env", "and"]),
        ("x[y] well-known GPT-4", ["x", "y", "well", "known", "gpt", "4", "gpt-4"]),
    ],
)
def test_words_begin_and_end_as_their_script_has_it(text: str, expected: list[str]) -> None:
    assert words(text) == expected


def test_written_words_keep_case_and_accents() -> None:
    assert split_words("L'E\u0301te\u0301 \u6771\u4eac", contractions=True) == [
        "L'\u00c9t\u00e9",
        "\u6771",
        "\u4eac",
    ]
    assert split_words("\u0915\u094d\u2019\u0916 it\u2019s", contractions=True) == [
        "\u0915\u094d\u2019\u0916",
        "it\u2019s",
    ]
    assert split_words("\u6771\u4eac", pairs=True) == ["\u6771", "\u6771\u4eac", "\u4eac"]


@pytest.mark.parametrize(
    "piece",
    ["a'", "\u0301", "\u0643\u064e", "\u4e2d", "\u0e01\u0e33", "\u00ad", "\u2122", "a\u0301\u200d", "\u1100"],
)
def test_the_words_of_a_long_text_take_linear_time(piece: str) -> None:
    text = piece * (50_000 // len(piece))
    began = time.process_time()
    words(text)
    split_words(text, contractions=True, pairs=True)
    count_words(text)
    assert time.process_time() - began < 2.0


@given(st.text("0123456789", min_size=1), st.text("(['\"", max_size=2), st.text(").,;:?!]'\"", max_size=3))
def test_a_number_is_one_word_between_any_marks_of_a_sentence(number: str, before: str, after: str) -> None:
    assert words(f"{before}{number}{after}") == [number]
