"""Chunking: long texts become overlapping pieces that fit a model.

Lengths are counted in words of `armwise.arms.tokenizer.word_spans`: the passages of a corpus are the same for
all models, so no tokenizer of one is asked.
"""

import re
from bisect import bisect_left, bisect_right
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from armwise.arms.tokenizer import word_spans

SLACK = 5
"""A piece may be longer by a fifth, to end with its paragraph."""


class Chunking(BaseModel):
    """How documents are cut into passages."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    words: int = Field(
        default=200,
        ge=20,
        description=(
            "Words per passage. A passage may be up to a fifth longer to reach the end of a paragraph. Each "
            "Chinese or Japanese character counts as a word."
        ),
    )
    overlap: int = Field(
        default=40,
        ge=0,
        description="Words that a passage repeats from the previous passage, at most a quarter of `words`.",
    )

    @model_validator(mode="after")
    def _check_overlap(self) -> Self:
        if 4 * self.overlap > self.words:
            raise ValueError(f"overlap {self.overlap} must be at most a quarter of words, {self.words}")
        return self


CHUNKING = Chunking()

WORD = re.compile(r"\S+")

PARAGRAPH_BORDER = re.compile(r"\n[ \t]*\n")


def chunks(text: str, how: Chunking = CHUNKING) -> list[str]:
    r"""Return the pieces of a text that `cut_spans` has found.

    >>> chunks("One paragraph.\n\nAnother.")
    ['One paragraph.\n\nAnother.']
    >>> [len(piece.split()) for piece in chunks("word " * 450)]
    [200, 200, 130]
    """
    return [text[begin:end] for begin, end in cut_spans(text, how)]


def cut_spans(text: str, how: Chunking = CHUNKING) -> list[tuple[int, int]]:
    """Cut a text into overlapping pieces that begin and end with a paragraph where they can.

    Args:
        text: The text; its line breaks are kept. Blanks count where many follow one another.
        how: Length and overlap of the pieces.

    Returns:
        Where pieces begin and end, of about `how.words` words and at most a fifth more, each repeating the
        last `how.overlap` or so of the one before. A blank text has none.

    >>> cut_spans("One. ")
    [(0, 4)]
    """
    spans, slack = word_spans(text), how.words // SLACK
    openings = _openings(text, [begin for begin, _ in spans])
    pieces = []
    start, end = 0, 0
    while end < len(spans):
        end = start + how.words
        if end + slack >= len(spans):
            end = len(spans)
        else:
            end = _snap(openings, end, start + how.words // 2, end + slack)
        begin, till = spans[start][0], spans[end - 1][1]
        if (first := WORD.search(text, begin, till)) is not None:
            pieces.append((first.start(), begin + len(text[begin:till].rstrip())))
        start = end - how.overlap
        start = _snap(openings, start, start - how.overlap // 2, start + how.overlap // 2)
    return pieces


def _openings(text: str, begins: list[int]) -> list[int]:
    r"""Return the index of the first word of every paragraph but the first.

    >>> _openings("a b\n\nc", [0, 2, 5])
    [2]
    """
    return [bisect_left(begins, border.end()) for border in PARAGRAPH_BORDER.finditer(text)]


def _snap(candidates: list[int], target: int, low: int, high: int) -> int:
    """Return the candidate in [low, high] nearest to `target`, or `target` when there is none.

    >>> _snap([10, 50, 90], 60, 40, 100), _snap([10, 50, 90], 60, 70, 80)
    (50, 60)
    """
    within = candidates[bisect_left(candidates, low) : bisect_right(candidates, high)]
    return min(within, key=lambda candidate: abs(candidate - target), default=target)
