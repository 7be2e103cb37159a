"""Chunking: long texts become overlapping pieces that fit a model.

Lengths are counted in words of `armwise.arms.tokenizer.word_spans`: the passages of a corpus are the same for
all models, so no tokenizer of one is asked.
"""

import re
from bisect import bisect_left, bisect_right

from armwise.arms.tokenizer import word_spans

CHUNK_WORDS = 200

OVERLAP_WORDS = 40

SLACK_WORDS = 40
"""Words beyond `CHUNK_WORDS` that a piece may have, to end with its paragraph."""

WORD = re.compile(r"\S+")

PARAGRAPH_BORDER = re.compile(r"\n[ \t]*\n")


def chunks(text: str) -> list[str]:
    r"""Return the pieces of a text that `cut_spans` has found.

    >>> chunks("One paragraph.\n\nAnother.")
    ['One paragraph.\n\nAnother.']
    >>> [len(piece.split()) for piece in chunks("word " * 450)]
    [200, 200, 130]
    """
    return [text[begin:end] for begin, end in cut_spans(text)]


def cut_spans(text: str) -> list[tuple[int, int]]:
    """Cut a text into overlapping pieces that begin and end with a paragraph where they can.

    Args:
        text: The text; its line breaks are kept. Blanks count where many follow one another.

    Returns:
        Where pieces begin and end, of about `CHUNK_WORDS` words and at most `SLACK_WORDS` more, each
        repeating the last `OVERLAP_WORDS` or so of the one before. A blank text has none.

    >>> cut_spans("One. ")
    [(0, 4)]
    """
    spans = word_spans(text)
    openings = _openings(text, [begin for begin, _ in spans])
    pieces = []
    start, end = 0, 0
    while end < len(spans):
        end = start + CHUNK_WORDS
        if end + SLACK_WORDS >= len(spans):
            end = len(spans)
        else:
            end = _snapped(openings, end, start + CHUNK_WORDS // 2, end + SLACK_WORDS)
        begin, till = spans[start][0], spans[end - 1][1]
        if (first := WORD.search(text, begin, till)) is not None:
            pieces.append((first.start(), begin + len(text[begin:till].rstrip())))
        start = end - OVERLAP_WORDS
        start = _snapped(openings, start, start - OVERLAP_WORDS // 2, start + OVERLAP_WORDS // 2)
    return pieces


def _openings(text: str, begins: list[int]) -> list[int]:
    r"""Return the index of the first word of every paragraph but the first.

    >>> _openings("a b\n\nc", [0, 2, 5])
    [2]
    """
    return [bisect_left(begins, border.end()) for border in PARAGRAPH_BORDER.finditer(text)]


def _snapped(candidates: list[int], target: int, low: int, high: int) -> int:
    """Return the candidate in [low, high] nearest to `target`, or `target` when there is none.

    >>> _snapped([10, 50, 90], 60, 40, 100), _snapped([10, 50, 90], 60, 70, 80)
    (50, 60)
    """
    within = candidates[bisect_left(candidates, low) : bisect_right(candidates, high)]
    return min(within, key=lambda candidate: abs(candidate - target), default=target)
