"""Pieces of texts in all scripts: none is too long, and none ends within a character."""

from itertools import pairwise

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from armwise.arms.corpus.chunking import Chunking, chunks, cut_spans
from armwise.arms.tokenizer import count_words

LINES = {
    "zh": "\u957f\u6c5f\u662f\u4e9a\u6d32\u6700\u957f\u7684\u6cb3\u6d41\u3002",
    "ja": "\u30d1\u30f3\u3092\u713c\u304f",
    "ja-nfd": "\u30cf\u309a\u30f3\u3092",
    "th": "\u0e01\u0e33\u0e25\u0e31\u0e07\u0e01\u0e34\u0e19",
    "my": "\u1019\u103c\u1014\u103a\u1019\u102c",
    "hi": "\u0915\u094d\u0937\u0924\u094d\u0930\u093f\u092f",
    "ko": "\ud55c\uad6d\uc5b4",
    "ru": "\u043c\u043e\u0441\u043a\u0432\u0430",
    "en": "x",
    "emoji": "\U0001f469\u200d\U0001f469\u200d\U0001f467\U0001f1e6\U0001f1f9",
    "marks": "e" + "\u0301" * 29,
}


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
@pytest.mark.slow
def test_a_long_line_without_a_blank_is_cut(line: str) -> None:
    text = (line * (100_000 // len(line) + 1))[:100_000]
    spans = cut_spans(text)
    assert (spans[0][0], spans[-1][1]) == (0, len(text))
    assert all(left[0] < right[0] <= left[1] < right[1] for left, right in pairwise(spans))
    assert max(count_words(text[begin:end]) for begin, end in spans) <= 240
    assert max(end - begin for begin, end in spans) <= 240 * max(16, len(line))
    borders = {cluster.start() for cluster in regex.finditer(r"\X", text)} | {len(text)}
    assert {border for span in spans for border in span} <= borders


def test_many_blanks_between_two_words_are_in_no_piece() -> None:
    spans = cut_spans("a" + " " * 100_000 + "b")
    assert max(end - begin for begin, end in spans) <= 240 * 16
    assert (spans[0], spans[-1]) == ((0, 1), (100_001, 100_002))


@st.composite
def chunkings(draw: st.DrawFn) -> Chunking:
    words = draw(st.integers(20, 120))
    return Chunking(words=words, overlap=draw(st.integers(0, words // 4)))


@given(
    st.just(Chunking()) | chunkings(),
    st.lists(
        st.tuples(st.sampled_from([*LINES.values(), " ", "\n\n", "\u3000", "a" * 17]), st.integers(1, 60))
    ),
)
def test_pieces_cover_a_text_of_any_script(how: Chunking, parts: list[tuple[str, int]]) -> None:
    text = "".join(line * times for line, times in parts)
    spans = cut_spans(text, how)
    assert all(count_words(text[begin:end]) <= how.words + how.words // 5 for begin, end in spans)
    assert all(left[0] < right[0] and left[1] < right[1] for left, right in pairwise(spans))
    assert all(text[begin:end] == text[begin:end].strip() != "" for begin, end in spans)
    covered = {at for begin, end in spans for at in range(begin, end)}
    assert {at for at, c in enumerate(text) if not c.isspace()} <= covered
    borders = {cluster.start() for cluster in regex.finditer(r"\X", text)} | {len(text)}
    assert {border for span in spans for border in span} <= borders


@pytest.mark.parametrize(("words", "overlap"), [(20, 5), (40, 0), (100, 10), (390, 38)])
def test_a_text_without_paragraphs_is_cut_at_its_words(words: int, overlap: int) -> None:
    text = " ".join(str(number) for number in range(1000))
    numbers = [
        [int(word) for word in piece.split()]
        for piece in chunks(text, Chunking(words=words, overlap=overlap))
    ]
    assert [len(piece) for piece in numbers[:-1]] == [words] * (len(numbers) - 1)
    assert [left[-1] - right[0] + 1 for left, right in pairwise(numbers)] == [overlap] * (len(numbers) - 1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"words": 19}, "greater than or equal to 20"),
        ({"overlap": -1}, "greater than or equal to 0"),
        ({"words": 100, "overlap": 26}, "overlap 26 must be at most a quarter of words, 100"),
    ],
)
def test_a_chunking_without_progress_is_refused(wrong: dict[str, int], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Chunking(**wrong)
