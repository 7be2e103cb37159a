"""The most that a turn may cost, which is reserved before its arm is drawn.

It adds the answer to the language model calls inside searches, for the dearest arm that may be drawn.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from armwise.agent.turn.ask import Ask
from armwise.agent.turn.eligibility import ArmInfo
from armwise.arms.base import UNUSED, Usage
from armwise.arms.llm import (
    MESSAGE_TOKENS,
    TOKENS_A_WORD,
    UNPROMPTED,
    Generator,
    Message,
    TokenPrices,
    base,
    most_tokens,
    prompts,
    write_document,
    writing,
)


@dataclass(frozen=True, slots=True)
class LanguageModel:
    """A language model of the service.

    Attributes:
        generator: Writes answers.
        compute_usd: Price of tokens that it reads and writes.
        options: Names of the `Prompt.options` that it is given.
        prices: Prices of its tokens, with those of its cache.
        protocol: Protocol of its endpoint; empty for an engine of this process.
        inputs: What it reads besides text.
    """

    generator: Generator
    compute_usd: Callable[[int, int], float] = lambda *_: 0.0
    options: frozenset[str] = base.OPTIONS
    prices: TokenPrices = field(default_factory=TokenPrices)
    protocol: str = ""
    inputs: frozenset[str] = frozenset()

    @property
    def marked(self) -> bool:
        """Whether it caches what a client marks, and reports that; else it caches each prompt by itself."""
        return self.protocol == "messages"

    @property
    def caches(self) -> bool:
        """Whether tokens that it has cached have a price of their own."""
        return self.prices.usd_per_kilotoken_cached is not None


UNNAMED_TOKENS = 4096
"""Tokens that are reserved for an answer where neither the request nor the arm has a limit."""

IMAGE_TOKENS = 2000
"""Most tokens of an image, at the sizes that typical endpoints reduce it to."""

FILE_BYTES_A_TOKEN = 16
"""Fewest characters of data of a file for a token: a page of a PDF has some 50 KB and 3,000 tokens."""


def estimate_attached_tokens(messages: Iterable[Message]) -> int:
    """Estimate the most tokens of the images and files of a conversation.

    >>> image, file = {"type": "image_url"}, {"type": "file", "file": {"file_data": "x" * 1600}}
    >>> estimate_attached_tokens([Message(role="user", content="What is it?", parts=[image, file])])
    2100
    """
    parts = list[dict[str, Any]]()
    for message in messages:
        parts += message.get("parts", ())
    files = [len(str(part["file"].get("file_data", ""))) for part in parts if part["type"] == "file"]
    images = [part for part in parts if part["type"] == "image_url"]
    return IMAGE_TOKENS * len(images) + sum(files) // FILE_BYTES_A_TOKEN


def limit_tokens(ask: Ask, how: writing.Answering) -> int:
    """Return the most tokens of an answer, as they are reserved."""
    return ask.document.max_tokens or how.limit or UNNAMED_TOKENS


@dataclass(frozen=True, slots=True)
class CostBound:
    """The most that a turn may cost.

    Attributes:
        tokens: Tokens that language models read and write.
        usd: Price of the tokens and of searches.
    """

    tokens: int = 0
    usd: float = 0.0

    def __add__(self, other: "CostBound") -> "CostBound":
        """Return the most that both together may cost."""
        return CostBound(self.tokens + other.tokens, self.usd + other.usd)


FREE = CostBound()


def dearest(several: Iterable[CostBound]) -> CostBound:
    """Return the largest tokens and the largest USD, which may come from two different bounds.

    >>> dearest([CostBound(10, 0.5), CostBound(20, 0.1)])
    CostBound(tokens=20, usd=0.5)
    """
    every = [FREE, *several]
    return CostBound(max(bound.tokens for bound in every), max(bound.usd for bound in every))


@dataclass(frozen=True, slots=True)
class PriceList:
    """Bounds of the cost of turns, from the arms and the language models of a replica.

    Attributes:
        arms: The arms by name.
        models: The language models by name.
        templates: Instructions of prompts by name.
    """

    arms: Mapping[str, ArmInfo]
    models: Mapping[str, LanguageModel]
    templates: Mapping[str, prompts.Template] = field(default_factory=dict)
    _counted: list[tuple[Ask, int]] = field(default_factory=list)  # the last request, and its tokens

    def search_usage(self, arm: str, question: str) -> Usage:
        """Return the most that a search of an arm spends."""
        bound = self.arms[arm].bound
        paid = Usage(usd=bound.search_usd, search_usd=bound.search_usd)
        return self._usage(writing.DEFAULT, *bound.tokens(question)) + paid

    def search(self, arm: str, question: str) -> CostBound:
        """Return the most that a search of an arm may cost."""
        return _most(self.search_usage(arm, question))

    def answer(self, arm: str, ask: Ask) -> CostBound:
        """Return the most that an answer from an arm's passages may cost; `FREE` to retrieve only."""
        if not ask.messages:
            return FREE
        info = self.arms[arm]
        most = self._answer(info.answering, ask)
        if (checked := info.checked) is None:
            return most
        judge = FREE
        if checked.check.llm is not None:
            bound = checked.check.compute_bound(limit_tokens(ask, info.answering))
            judged = self._usage(
                checked.check.llm, *(bound * ask.document.options.get("n", 1)).tokens(ask.question)
            )
            judge = _most(judged)
        return most + judge + self._answer(checked.answering, ask)

    def _answer(self, how: writing.Answering, ask: Ask) -> CostBound:
        """Return the most that an answer may cost that is written in this way."""
        template = self.templates.get(how.prompt) or prompts.find_template(prompts.Form.DIRECT)
        read = self._conversation(ask) + most_tokens(template.with_passages) + most_tokens(prompts.CITE)
        read += TOKENS_A_WORD * how.word_budget
        written = limit_tokens(ask, how) * ask.document.options.get("n", 1)
        if how.prompt == prompts.Form.REASONING:  # without its tag it reads its text, and answers again
            read += read + written + most_tokens(prompts.ANSWER_ALONE) + 2 * MESSAGE_TOKENS
            written *= 2
        return _most(self._usage(how.llm, read, written))

    def _conversation(self, ask: Ask) -> int:
        """Return the most tokens of the request itself, which are the same for all arms."""
        if not self._counted or self._counted[0][0] is not ask:
            options = [dict(ask.document.options), [message.get("tool_calls") for message in ask.messages]]
            texts = [*(message["content"] for message in ask.messages), write_document(options).decode()]
            around = MESSAGE_TOKENS * (1 + len(ask.messages)) + estimate_attached_tokens(ask.messages)
            self._counted[:] = [(ask, sum(map(most_tokens, texts)) + around)]
        return self._counted[0][1]

    def turn(
        self, ask: Ask, names: Sequence[str], probed: Collection[str], fallback: str | None
    ) -> CostBound:
        """Return the most that a turn may cost, whichever arm is drawn.

        Args:
            ask: The request.
            names: The arms that may be drawn.
            probed: Arms that search before one is drawn; of arms with the same search, one searches.
            fallback: The arm that answers if the drawn one fails.
        """
        if not ask.messages and all(self.arms[name].bound == UNPROMPTED for name in names):
            return FREE
        first = {self.arms[name].searched or name: name for name in names if name in probed}
        before = sum((self.search(name, ask.question) for name in first.values()), FREE)
        return before + dearest(self._bound_drawn(ask, name, probed, fallback) for name in names)

    def _bound_drawn(self, ask: Ask, arm: str, probed: Collection[str], fallback: str | None) -> CostBound:
        """Return the most that a turn may cost once this arm is drawn."""
        run = [arm] if fallback in (None, arm) else [arm, fallback]
        searches = (self.search(name, ask.question) for name in run if name not in probed)
        # if the model of the arm wrote no answer, the fallback writes one with its model, if that differs
        by_model: dict[str, list[CostBound]] = {}
        for name in run:
            by_model.setdefault(self.arms[name].answering.llm, []).append(self.answer(name, ask))
        return sum((*searches, *map(dearest, by_model.values())), FREE)

    def _usage(self, model: str, read: int, written: int) -> Usage:
        """Return tokens with their price; `UNUSED` if the service has no such model."""
        if (llm := self.models.get(model)) is None:
            return UNUSED
        usd = max(llm.compute_usd(read, written), llm.prices.compute_usd(read, written, 0, read))
        return Usage(read, written, 0, usd)


def _most(usage: Usage) -> CostBound:
    return CostBound(usage.prompt_tokens + usage.completion_tokens, usage.usd)
