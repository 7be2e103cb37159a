"""Stems: the language of a text, and what of it is left as it is written."""

import itertools
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from snowballstemmer.english_stemmer import EnglishStemmer

from armwise.arms.stems import FREQUENT, Language, find_language, index_words
from armwise.arms.tokenizer import StopWords, words


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("The pumps of the plant are old, and a seal of one was changed.", "english"),
        ("Die Pumpen sind alt, und eine Dichtung ist nicht mehr zu haben.", "german"),
        ("Les pompes sont anciennes et une des pi\u00e8ces est us\u00e9e dans le bloc.", "french"),
        ("Las bombas son viejas y una de las piezas no se vende por separado.", "spanish"),
        ("As bombas n\u00e3o s\u00e3o novas e uma das pe\u00e7as \u00e9 para trocar.", "portuguese"),
        ("Le pompe sono vecchie e una delle guarnizioni non \u00e8 in vendita con il kit.", "italian"),
        ("De pompen zijn oud en een van de ringen is niet meer te koop.", "dutch"),
        ("Pumparna \u00e4r gamla och en av dem har inte den ring som beh\u00f6vs f\u00f6r det.", "swedish"),
        ("\u044d\u0442\u043e \u043d\u0435 \u0434\u043b\u044f C#", "russian"),
        ("KVX-4411 KVX-2077", "english"),
        ("", "english"),
    ],
)
def test_the_language_with_the_most_frequent_words_is_found(text: str, language: Language) -> None:
    assert find_language([text]) == language


@pytest.mark.parametrize("language", FREQUENT)
def test_every_language_that_is_found_has_stems(language: Language) -> None:
    assert index_words(FREQUENT[language], language)


@pytest.mark.parametrize(
    ("text", "plain", "asked"),
    [
        ("Receipts", ["receipt"], ["receipt", "receipts"]),
        (
            "readReceipts",
            ["read", "receipt", "readreceipts"],
            ["read", "receipt", "readreceipts", "receipts"],
        ),
        ("a_files ipv4s", ["a", "file", "a_files", "ipv4s"], ["a", "file", "a_files", "files", "ipv4s"]),
        ("\u6771\u4eac", ["\u6771", "\u6771\u4eac", "\u4eac"], ["\u6771", "\u6771\u4eac", "\u4eac"]),
        ("the caf\u00e9s", ["caf\u00e9"], ["caf\u00e9", "caf\u00e9s"]),
    ],
)
def test_stems_replace_words_but_no_names(text: str, plain: list[str], asked: list[str]) -> None:
    stop: StopWords = "none" if text.startswith("a_") else "english"
    assert index_words(text, "english", stop) == plain
    assert index_words(text, "english", stop, question=True) == asked


def test_without_a_language_the_words_stay_as_they_are() -> None:
    text = "Receipts of readReceipts, \u6771\u4eac, " + "x" * 100
    assert index_words(text, "none", "english") == words(text, "english")


def test_threads_that_stem_at_once_have_the_stems_of_one() -> None:
    every = [
        "".join(letters) for letters in itertools.product("bcdfg", "aeiou", "klmnp", "aeiou", ("tings",))
    ]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda word: index_words(word, "english"), every))
    finally:
        sys.setswitchinterval(before)
    assert found == [[EnglishStemmer().stemWord(word)] for word in every]
