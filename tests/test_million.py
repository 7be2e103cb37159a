"""The corpora of `benchmarks/million.py`: the same every time, with all that answers a question."""

from itertools import islice
from pathlib import Path

import numpy as np
import orjson
import pytest

from benchmarks.million_data import BLOCK, Source, embedded_places, fill_vectors, passages, write_passages

ROWS = [
    {"id": f"p{n}", "title": f"title {n}", "text": f"First of {n}. Then of {n}! Last of {n}?"}
    for n in range(40)
]
GOLD = {"p3", "p17"}
SIZE = 400


def source() -> Source:
    return Source.of(ROWS, [{"question": "?", "gold_ids": [name]} for name in sorted(GOLD)])


def test_a_corpus_is_the_same_every_time_and_the_beginning_of_a_larger_one(tmp_path: Path) -> None:
    whole = list(passages(source(), SIZE))
    assert list(passages(source(), SIZE)) == whole
    assert list(islice(passages(source(), 2 * BLOCK), SIZE)) == whole
    write_passages(source(), SIZE, tmp_path / "corpus.jsonl")
    assert [*map(orjson.loads, (tmp_path / "corpus.jsonl").read_bytes().splitlines())] == whole


def test_every_real_passage_is_there_and_no_sentence_of_an_answer_is_there_twice() -> None:
    whole = list(passages(source(), SIZE))
    assert whole[: len(ROWS)] == ROWS
    assert len({row["id"] for row in whole}) == SIZE
    made = " ".join(row["title"] + " " + row["text"] for row in whole[len(ROWS) :])
    assert "First of 4." in made
    for name in GOLD:
        assert f" of {name[1:]}." not in made
        assert f"title {name[1:]} " not in made


def test_made_passages_have_as_many_sentences_as_real_ones() -> None:
    made = list(passages(source(), SIZE))[len(ROWS) :]
    assert {sum(row["text"].count(end) for end in ".!?") for row in made} == {3}


@pytest.mark.parametrize("n", [None, 12])
def test_vectors_are_the_same_every_time_of_length_one_and_the_real_ones_stay(n: int | None) -> None:
    rng, own = np.random.default_rng(0), source()
    places = embedded_places(own, own.questions, n)
    assert {ROWS[at]["id"] for at in places} >= GOLD
    assert len(places) == (n or len(ROWS))
    real = rng.standard_normal((len(places), 8)).astype(np.float32)
    real /= np.linalg.norm(real, axis=1, keepdims=True)
    first, second, less = (np.zeros((m, 8), dtype=np.float32) for m in (SIZE, SIZE, SIZE // 2))
    for into in (first, second, less):
        fill_vectors(own, places, real, into)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(first[: SIZE // 2], less)
    np.testing.assert_array_equal(first[places], real)
    np.testing.assert_allclose(np.linalg.norm(first, axis=1), 1.0, atol=1e-5)
    assert len(np.unique(first, axis=0)) == SIZE


def test_a_source_of_answers_alone_is_refused() -> None:
    with pytest.raises(ValueError, match="all of the 1 passages answer a question"):
        Source.of(ROWS[:1], [{"question": "?", "gold_ids": ["p0"]}])
