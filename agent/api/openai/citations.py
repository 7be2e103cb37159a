"""Where an answer cites the passages that the model was shown: `[1]` is the first one."""

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from arms.base import Passage
from arms.llm import prompts

_MARKER = re.compile(r"\[(\d{1,3})\]")


def annotations(text: str, passages: Sequence[Passage], word_budget: int) -> list[dict[str, Any]]:
    """Return a citation for each number of a shown passage in an answer, in OpenAI's shape.

    Args:
        text: The answer.
        passages: What the arm found, best first.
        word_budget: Words of them that the model was shown.

    >>> [found] = annotations("It is blue [1], not red [7].", [Passage("sky", "Sky", "It is blue.")], 100)
    >>> found["url_citation"]
    {'start_index': 11, 'end_index': 14, 'title': 'Sky', 'url': 'urn:armwise:passage:sky'}
    """
    found = list(_MARKER.finditer(text))
    shown = sum(1 for _ in prompts.numbered(passages, word_budget)) if found else 0
    return [
        {"type": "url_citation", "url_citation": _citation(marker, passages[number - 1])}
        for marker in found
        if 1 <= (number := int(marker[1])) <= shown
    ]


def _citation(marker: re.Match[str], passage: Passage) -> dict[str, Any]:
    return {
        "start_index": marker.start(),
        "end_index": marker.end(),
        "title": passage.title,
        "url": url_of(passage.id),
    }


def url_of(passage_id: str) -> str:
    """Return where a passage is: its id where that is a URL, else a URN with its id.

    >>> url_of("https://example.com/a"), url_of("a b")
    ('https://example.com/a', 'urn:armwise:passage:a%20b')
    """
    if passage_id.startswith(("https://", "http://")):
        return passage_id
    return f"urn:armwise:passage:{quote(passage_id, safe='')}"
