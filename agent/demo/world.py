"""The world of the demo: users who ask and rate, two scripted models, and the search API of another team.

The service sees questions, answers and ratings. It never sees a kind of question or an answer key.
"""

import hashlib
import itertools
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from armwise.arms.base import Arm, Passage, Query

LOOKUP, COMPARISON, RULE = "library look-ups", "library comparisons", "language rules"
"""Kinds of questions."""

RIGHT_ARMS = {
    LOOKUP: ("library-small", "library-large"),
    COMPARISON: ("library-large",),
    RULE: ("language-small",),
}
"""The arms that answer nearly all questions of a kind right; the first one is the cheapest."""

BEST = {kind: arms[0] for kind, arms in RIGHT_ARMS.items()}
"""The arm that is worth most for each kind of question."""

ALONE = "large-alone"
"""The arm that is worth most for rules once the search API is stale."""

WORDINGS = {
    LOOKUP: ("What does {} do?", "What is {} for?", "What does {} return?"),
    COMPARISON: (
        "Which is better, {} or {}?",
        "Which one do I want, {} or {}?",
        "Which should I use, {} or {}?",
    ),
    RULE: ("How does Python treat {}?", "How does Python handle {}?", "How is {} defined?"),
}

SMALL, LARGE, BY_HEART = "small", "large", "large without passages"

RIGHT = {
    SMALL: {LOOKUP: 0.95, COMPARISON: 0.2, RULE: 0.95},
    LARGE: {LOOKUP: 0.97, COMPARISON: 0.95, RULE: 0.97},
    BY_HEART: {LOOKUP: 0.3, COMPARISON: 0.2, RULE: 0.5},
}
"""Share of the questions that a model answers right, if it has the passages needed or needs none."""

USD_PER_KILOTOKEN = {SMALL: (0.0002, 0.0008), LARGE: (0.004, 0.016)}
"""Price of each model for 1,000 tokens that it reads, and for 1,000 that it writes."""

MISRATED = 0.05
"""Share of the ratings that are wrong."""

WITHDRAWN = " (withdrawn edition)"
"""The end of titles from a stale search API. Its texts do not answer questions about today's Python."""

FUNCTION = re.compile(r"\A(?!tkinter|turtle)[a-z]+(?:\.[a-z]+)?\.[a-z][a-z_]{3,}\Z")
"""Names of functions and methods that users ask about."""

HEADING = re.compile(r"^\[\d+\] (.+)$", re.MULTILINE)
"""The title of a passage in a prompt."""

SENTENCE = 200
"""Most characters of a sentence of an answer."""


@dataclass(frozen=True, slots=True)
class KnownQuestion:
    """A question, its kind, and its answer key: the sentences of a right answer by title of their passage."""

    text: str
    kind: str
    key: dict[str, str]

    def is_answered(self, text: str) -> bool:
        """Return whether a text has all sentences of the answer."""
        return all(sentence in text for sentence in self.key.values())


class World:
    """Draws questions and rates answers; its routes are what the service calls.

    Args:
        library, language: Passages of Python's library, and of its language reference.
        reference: Searches the language reference; the answers are withdrawn ones while `stale`.
        seed: Decides what is asked, which ratings are wrong, and what each model knows.
    """

    def __init__(
        self, library: Sequence[Passage], language: Sequence[Passage], reference: Arm, seed: int
    ) -> None:
        functions = [p for p in library if "#" not in p.id and FUNCTION.match(p.title)]
        self._sentences = {p.title: first_sentence(p.text) for p in (*reversed(language), *functions)}
        names = [p.title for p in functions if len(self._sentences[p.title]) > 1]
        same = defaultdict(list)
        for name in names:
            same[name.rpartition(".")[2]].append(name)
        pairs = [pair for alike in same.values() for pair in itertools.combinations(alike, 2)]
        rules = list(dict.fromkeys(p.title for p in language))
        self._subjects: dict[str, Sequence[tuple[str, ...]]] = {
            LOOKUP: [(n,) for n in names],
            COMPARISON: pairs,
            RULE: [(r,) for r in rules],
        }
        self._reference, self._seed, self._rng = reference, seed, np.random.default_rng(seed)
        self._asked: dict[str, KnownQuestion] = {}
        self.stale = False
        # what the large model would have charged for all prompts so far, and how often it would be right
        self.large_usd, self.large_right = 0.0, 0

    def draw(self) -> KnownQuestion:
        """Draw a question. All kinds are equally frequent."""
        kind = list(WORDINGS)[self._rng.integers(len(WORDINGS))]
        subjects = self._subjects[kind][int(self._rng.integers(len(self._subjects[kind])))]
        wording = WORDINGS[kind][self._rng.integers(len(WORDINGS[kind]))]
        text = wording.format(*(title[0].lower() + title[1:] for title in subjects))
        key = {title: self._sentences[title] for title in subjects}
        return self._asked.setdefault(text, KnownQuestion(text, kind, key))

    def rate(self, question: KnownQuestion, answer: str) -> bool:
        """Return whether a user calls an answer right, which is sometimes a mistake."""
        return question.is_answered(answer) != bool(self._rng.random() < MISRATED)

    def write(self, model: str, question: KnownQuestion, titles: Sequence[str]) -> str:
        """Return the answer of a model that reads passages with these titles."""
        draw = hashlib.sha256(f"{self._seed} {model} {question.text}".encode()).digest()
        luck = int.from_bytes(draw[:4]) / 2**32
        share = RIGHT.get(model if titles else f"{model} without passages", {}).get(question.kind, 0.0)
        if luck < share and (question.key.keys() <= set(titles) or not titles):
            return " ".join(question.key.values())
        return "The passages do not say." if titles else "I am not sure."

    @property
    def routes(self) -> list[Route]:
        """The models, by OpenAI's protocol, and the search API."""
        return [Route("/v1/chat/completions", self._chat, methods=["POST"]), Route("/search", self._search)]

    async def _chat(self, request: Request) -> Response:
        body = await request.json()
        messages = [str(message["content"]) for message in body["messages"]]
        titles, n_read = HEADING.findall(messages[0]), sum(map(len, messages)) // 4
        question = self._asked[messages[-1]]
        texts = {model: self.write(model, question, titles) for model in (SMALL, LARGE)}
        self.large_usd += price(LARGE, n_read, texts[LARGE])
        self.large_right += question.is_answered(texts[LARGE])
        usage = {"prompt_tokens": n_read, "completion_tokens": count_tokens(texts[body["model"]])}
        message = {"role": "assistant", "content": texts[body["model"]]}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        reply = {"id": "demo", "object": "chat.completion", "created": 0, "model": body["model"]}
        return JSONResponse({**reply, "choices": [choice], "usage": usage})

    async def _search(self, request: Request) -> Response:
        found = self._reference.search(Query(request.query_params["q"]), int(request.query_params["k"]))
        edition = WITHDRAWN if self.stale else ""
        results = [{"id": p.id + edition, "title": p.title + edition, "text": p.text} for p in found.passages]
        return JSONResponse({"results": results})


def count_tokens(text: str) -> int:
    """Return about how many tokens a text has."""
    return len(text) // 4 + 1


def price(model: str, n_read: int, text: str) -> float:
    """Return the dollars that a model charges for reading so many tokens and writing a text."""
    read, written = USD_PER_KILOTOKEN[model]
    return (read * n_read + written * count_tokens(text)) / 1000


def first_sentence(text: str) -> str:
    r"""Return the first sentence of a text; of a documentation string, the first one after the signature.

    >>> first_sentence("heapq.heapify(heap, /)\n\nTransform list into a heap,\nin-place. In linear time.")
    'Transform list into a heap, in-place.'
    """
    signature, _, rest = text.partition("\n\n")
    body = rest if "\n" not in signature and not signature.endswith((".", ":")) else text
    return " ".join(body.split()).partition(". ")[0][:SENTENCE].rstrip(".") + "."
