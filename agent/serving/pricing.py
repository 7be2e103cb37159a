"""What a turn costs: at most, which is reserved before its arm is drawn, and what its searches have spent.

A turn costs the answer, where one is asked for, and the calls of a language model inside searches of arms.
Which arm is drawn is not known before: the dearest one that may be drawn counts.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import orjson

from agent.serving.generation import Model
from agent.serving.messages import ArmInfo, Ask
from agent.serving.probe import unexplained
from arms.base import UNUSED, Retrieval, Usage
from arms.llm import MESSAGE_TOKENS, TOKENS_A_WORD, most_tokens, prompts, writing
from feedback.events import Cost

HEDGED = 2
"""Requests of a model that is asked again where it is slow to begin."""


@dataclass(frozen=True, slots=True)
class Most:
    """The most that a turn may cost.

    Attributes:
        tokens: Tokens that language models read and write.
        usd: Their price.
    """

    tokens: int = 0
    usd: float = 0.0

    def __add__(self, other: "Most") -> "Most":
        """Return the most that both may cost."""
        return Most(self.tokens + other.tokens, self.usd + other.usd)


FREE = Most()


def dearest(several: Iterable[Most]) -> Most:
    """Return the most that one of several may cost: the tokens of one, and the USD of perhaps another.

    >>> dearest([Most(10, 0.5), Most(20, 0.1)])
    Most(tokens=20, usd=0.5)
    """
    every = [FREE, *several]
    return Most(max(one.tokens for one in every), max(one.usd for one in every))


@dataclass(slots=True)
class Spending:
    """What the searches of a turn have spent, whatever became of them.

    Attributes:
        by_model: What language models read and wrote, by name: for arms, and where one failed.
        tokens: Tokens of models that are not known here.
    """

    by_model: dict[str, Usage] = field(default_factory=dict)
    tokens: int = 0

    def add(self, model: str, usage: Usage) -> None:
        """Add what a language model read and wrote."""
        if usage != UNUSED:
            self.by_model[model] = self.by_model.get(model, UNUSED) + usage

    def search(self, retrieval: Retrieval) -> None:
        """Add what a search has spent."""
        self.tokens += unexplained(retrieval)
        self.add(writing.DEFAULT, retrieval.usage)

    @property
    def cost(self) -> Cost:
        """Tokens and USD of all of it."""
        total = sum(self.by_model.values(), UNUSED)
        return Cost(
            prompt_tokens=total.prompt_tokens + self.tokens,
            completion_tokens=total.completion_tokens,
            usd=total.usd,
        )


@dataclass(frozen=True, slots=True)
class PriceList:
    """What turns may cost with the arms and the language models of a replica.

    Attributes:
        arms: The arms by name.
        models: The language models by name.
        templates: Instructions of prompts by name.
    """

    arms: Mapping[str, ArmInfo]
    models: Mapping[str, Model]
    templates: Mapping[str, prompts.Template] = field(default_factory=dict)

    def search_usage(self, arm: str, question: str) -> Usage:
        """Return the most that the language model reads and writes for a search of an arm."""
        read, written = self.arms[arm].bound.tokens(question)
        return self._usage(writing.DEFAULT, read, written)

    def search(self, arm: str, question: str) -> Most:
        """Return the most that a search of an arm may cost."""
        return _most(self.search_usage(arm, question))

    def answer(self, arm: str, ask: Ask) -> Most:
        """Return the most that an answer from what an arm finds may cost; nothing to retrieve only."""
        if not ask.messages:
            return FREE
        how = self.arms[arm].answering
        options = [dict(ask.options), [message.get("tool_calls") for message in ask.messages]]
        texts = [message["content"] for message in ask.messages]
        template = self.templates.get(how.prompt) or prompts.template_of(prompts.Form.DIRECT)
        texts += [orjson.dumps(options).decode(), template.with_passages, prompts.CITE]
        read = sum(map(most_tokens, texts)) + MESSAGE_TOKENS * (1 + len(ask.messages))
        read += TOKENS_A_WORD * how.word_budget
        written = (ask.max_tokens or how.max_tokens) * ask.options.get("n", 1)
        return _most(self._usage(how.llm, read, written))

    def turn(self, ask: Ask, names: Sequence[str], probed: Collection[str], fallback: str | None) -> Most:
        """Return the most that a turn may cost, whichever arm is drawn.

        Args:
            ask: The request.
            names: The arms that may be drawn.
            probed: Those that search before one is drawn; arms that search the same search once.
            fallback: The arm that answers where the drawn one fails; None for none.
        """
        first = {self.arms[name].searched or name: name for name in names if name in probed}
        before = sum((self.search(name, ask.question) for name in first.values()), FREE)
        return before + dearest(self._drawn(ask, name, probed, fallback) for name in names)

    def _drawn(self, ask: Ask, arm: str, probed: Collection[str], fallback: str | None) -> Most:
        """Return the most that a turn may cost once this arm is drawn."""
        run = [arm] if fallback in (None, arm) else [arm, fallback]
        searches = (self.search(name, ask.question) for name in run if name not in probed)
        # the fallback writes an answer as well where the model of the arm wrote none, and is another one
        by_model: dict[str, list[Most]] = {}
        for name in run:
            by_model.setdefault(self.arms[name].answering.llm, []).append(self.answer(name, ask))
        return sum((*searches, *map(dearest, by_model.values())), FREE)

    def _usage(self, model: str, read: int, written: int) -> Usage:
        """Return tokens with their price; nothing of a model that is not there."""
        if (known := self.models.get(model)) is None:
            return UNUSED
        read *= HEDGED if known.hedged else 1
        return Usage(read, written, 0, known.usd_of(read, written))


def _most(usage: Usage) -> Most:
    return Most(usage.prompt_tokens + usage.completion_tokens, usage.usd)
