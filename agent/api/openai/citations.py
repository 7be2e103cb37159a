"""Where an answer cites the passages that the model was shown: `[1]` is the first one."""

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from agent.config import AppConfig
from arms.base import Passage
from arms.llm import prompts

_MARKER = re.compile(r"\[(\d{1,3})\]")


def annotations(text: str, passages: Sequence[Passage], config: AppConfig, arm: str) -> list[dict[str, Any]]:
    """Return a citation for each number of a shown passage in an answer, in OpenAI's shape.

    Args:
        text: The answer.
        passages: What the arm found, best first.
        config: Says how much of them the model was shown.
        arm: Which one answered.
    """
    found = list(_MARKER.finditer(text))
    how = config.answering_of(arm)
    shown = sum(1 for _ in prompts.numbered(passages, how.word_budget)) if found else 0
    return [
        {"type": "url_citation", "url_citation": _citation(marker, passages[number - 1], config)}
        for marker in found
        if 1 <= (number := int(marker[1])) <= shown
    ]


def _citation(marker: re.Match[str], passage: Passage, config: AppConfig) -> dict[str, Any]:
    return {
        "start_index": marker.start(),
        "end_index": marker.end(),
        "title": passage.cited,
        "url": url_of(passage.id, config.corpus.name),
    }


def url_of(passage_id: str, corpus: str) -> str:
    """Return the id of a passage where it is a URL, else a name that is unique.

    >>> url_of("https://example.com/a", "c"), url_of("a b", "c")
    ('https://example.com/a', 'urn:armwise:c:a%20b')
    """
    if passage_id[:8].lower().startswith(("https://", "http://")):  # a scheme has no case
        return passage_id
    return f"urn:armwise:{quote(corpus, safe='')}:{quote(passage_id, safe='')}"
