"""The most that a turn may cost, which is reserved before its arm is drawn.

There is one bound. A token is at least one byte, so a request has at most as many tokens as bytes, whatever
its fields mean. What the arms add and the limit of the answer come to these. All are priced at the dearest
language model that may be asked.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

from armwise.agent.turn.ask import Ask
from armwise.agent.turn.eligibility import ArmInfo
from armwise.arms.base import Usage
from armwise.arms.llm import (
    TOKENS_A_WORD,
    UNPROMPTED,
    Bound,
    Generator,
    Message,
    TokenPrices,
    base,
    most_tokens,
    prompts,
    writing,
)

LONG_CONTEXT = 1_000_000
"""Tokens that a model of the protocol `messages` may read if the client asks for that in a header."""


@dataclass(frozen=True, slots=True)
class LanguageModel:
    """A language model of the service.

    Attributes:
        generator: Writes answers.
        prices: Prices of its tokens, with those of its cache.
        options: Names of the `Prompt.options` that it is given.
        protocol: Protocol of its endpoint; empty for an engine of this process.
        inputs: What it reads besides text.
    """

    generator: Generator
    prices: TokenPrices = field(default_factory=TokenPrices)
    options: frozenset[str] = base.OPTIONS
    protocol: str = ""
    inputs: frozenset[str] = frozenset()

    @property
    def marked(self) -> bool:
        """Whether it caches what a client marks, and reports that; else it caches each prompt by itself."""
        return self.protocol == "messages"

    @property
    def window(self) -> int:
        """Most tokens that it can read at once."""
        return max(self.prices.window, LONG_CONTEXT) if self.marked else self.prices.window

    @property
    def caches(self) -> bool:
        """Whether tokens that it has cached have a price of their own."""
        return self.prices.usd_per_kilotoken_cached is not None


UNNAMED_TOKENS = 4096
"""Tokens that are reserved for an answer where neither the request nor the arm has a limit."""

AROUND_TOKENS = 256
"""Most tokens of the instructions that surround a template: to cite, and to answer again without reasons."""

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


FREE = CostBound()


def bound_turn(
    ask: Ask,
    arms: Mapping[str, ArmInfo],
    models: Mapping[str, LanguageModel],
    templates: Mapping[str, prompts.Template],
    names: Sequence[str],
    probed: Collection[str] = (),
    fallback: str | None = None,
) -> CostBound:
    """Return the most that a turn may cost, whichever arm is drawn.

    Args:
        ask: The request.
        arms: The arms by name.
        models: The language models by name.
        templates: Instructions of prompts by name.
        names: The arms that may be drawn.
        probed: Arms that search before one is drawn.
        fallback: The arm that answers if the drawn one fails.
    """
    run = {name: arms[name] for name in (*names, *([] if fallback is None else [fallback]))}
    searches = {name: UNPROMPTED if name in probed else info.bound for name, info in run.items()}
    answers = {name: _bound_answer(ask, info, models, templates) for name, info in run.items()}
    most = sum((run[name].bound for name in names if name in probed), UNPROMPTED)
    most += _largest(searches[name] for name in names) + _largest(answers.values())
    if fallback is not None and len(run) > 1:
        most += searches[fallback]
        if len({info.answering.llm for info in run.values()}) > 1:  # it asks its model after another one
            most += answers[fallback]
    read, written = most.tokens(ask.question)
    asked = {model for info in run.values() for model in _list_models(ask, info)} & models.keys()
    if not asked:
        return CostBound(0, most.search_usd)
    usd = max(models[name].prices.compute_most(read, written) for name in asked)
    return CostBound(read + written, usd + most.search_usd)


def bound_search(info: ArmInfo, question: str, models: Mapping[str, LanguageModel]) -> Usage:
    """Return the most that a search of an arm spends, to charge a search that was cut off."""
    paid = Usage(usd=info.bound.search_usd, search_usd=info.bound.search_usd)
    if (model := models.get(writing.DEFAULT)) is None:
        return paid
    read, written = info.bound.tokens(question)
    return paid + Usage(read, written, 0, model.prices.compute_most(read, written))


def _list_models(ask: Ask, info: ArmInfo) -> Iterator[str]:
    """Yield the names of the language models that an arm may ask."""
    if info.bound.read or info.bound.questions or info.bound.written:
        yield writing.DEFAULT
    if ask.messages:
        yield info.answering.llm
        if (checked := info.checked) is not None:
            yield checked.answering.llm
            yield checked.check.llm or checked.answering.llm


def _bound_answer(
    ask: Ask, info: ArmInfo, models: Mapping[str, LanguageModel], templates: Mapping[str, prompts.Template]
) -> Bound:
    """Return the bound of an answer from an arm's passages; nothing to retrieve only."""
    most, choices = UNPROMPTED, ask.document.options.get("n", 1)
    if not ask.messages:
        return most
    checked = info.checked
    for how in (info.answering, *([] if checked is None else [checked.answering])):
        if (model := models.get(how.llm)) is None:
            continue
        template = templates.get(how.prompt) or prompts.find_template(prompts.Form.DIRECT)
        read = ask.most_read + estimate_attached_tokens(ask.messages)
        read += AROUND_TOKENS + most_tokens(template.with_passages)
        read += TOKENS_A_WORD * how.word_budget if info.searches else 0
        read, written = min(read, model.window), limit_tokens(ask, how) * choices
        calls = 2 if how.prompt == prompts.Form.REASONING else 1  # without its tag it reads its text again
        most += Bound(0, read, written) * calls + Bound(0, written * (calls - 1))
    if checked is not None and checked.check.llm in models:
        most += checked.check.compute_bound(limit_tokens(ask, info.answering)) * choices
    return most


def _largest(bounds: Iterable[Bound]) -> Bound:
    """Return the largest of each number of several bounds.

    >>> _largest([Bound(1, 10), Bound(0, 20, 5)])
    Bound(questions=1, read=20, written=5, search_usd=0.0)
    """
    return Bound(*map(max, zip(*map(astuple, [UNPROMPTED, *bounds]), strict=True)))
