"""How the answers of one arm are written: which language model, which prompt, how much of what was found."""

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from armwise.arms.llm.prompts import PASSAGES, Template
from armwise.number import Number

DEFAULT = "default"
"""Name of the language model in `llm`; those in `llms` have names of their own."""

AS_SENT = "as_sent"
"""Prompt that leaves the conversation as the client sent it."""

MOST_PASSAGES = 50
"""Most passages that an answer is written from, or that a request may ask for."""

Effort = Literal["none", "minimal", "low", "medium", "high"]


class WritingSpec(BaseModel):
    """How this arm's answers are generated. If a key is null, its value comes from `answering`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    llm: str | None = Field(
        default=None,
        description="Name of a language model in `llms`, or `default`.",
    )
    prompt: str | None = Field(default=None, description="Instructions, as in `answering.prompt`.")
    passages: int | None = Field(
        default=None,
        ge=1,
        le=MOST_PASSAGES,
        description="Number of passages to retrieve, unless the request sets one.",
    )
    word_budget: int | None = Field(
        default=None, ge=10, description="Maximum passage words given to the model."
    )
    max_tokens: int | None = Field(
        default=None, ge=1, description="Maximum tokens per answer, unless the request sets a limit."
    )
    temperature: Number | None = Field(
        default=None, ge=0, le=2, description="Sampling temperature, unless the request sets one."
    )
    reasoning: Effort | None = Field(
        default=None,
        description="Reasoning effort for engines that support it, unless the request sets one.",
    )

    def features(self) -> Iterator[tuple[str, float]]:
        """Yield what a policy sees of it, so that what is learned of a part holds wherever it is used."""
        for name in ("llm", "prompt", "reasoning"):
            if (value := getattr(self, name)) is not None:
                yield f"{name}={value}", 1.0
        for name, unit in (("passages", 10.0), ("word_budget", 1000.0), ("max_tokens", 1000.0)):
            if (value := getattr(self, name)) is not None:
                yield f"answering.{name}", value / unit
        if self.temperature is not None:
            yield "answering.temperature", self.temperature


class Answering(BaseModel):
    """How answers are generated from passages. An arm may override these settings."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    llm: str = Field(
        default=DEFAULT,
        description="Name of a language model in `llms`, or `default` for the model under `llm`.",
    )
    prompt: str = Field(
        default="direct",
        description=(
            "Instructions for the model: one of your `prompts`, or a built-in one. `direct`: answer in a "
            "short sentence. `short`: answer in a few words. `reasoning`: reason in some sentences, and "
            "then answer in a few words. You pay for the reasoning, but the client does not get it. "
            "`as_sent`: pass on the conversation as the client sent it, with any passages. This is the "
            "default for arms that search nothing. A request with tools, a response format, several "
            "choices, log-probabilities or stop sequences gets `direct` instead of `reasoning`."
        ),
    )
    passages: int = Field(
        default=4,
        ge=1,
        le=MOST_PASSAGES,
        description="Number of passages to retrieve, unless the request sets one.",
    )
    word_budget: int = Field(default=400, ge=10, description="Maximum passage words given to the model.")
    max_tokens: int = Field(
        default=512,
        ge=1,
        description=(
            "Maximum tokens per answer, unless the request sets a limit. With the prompt `as_sent`, an "
            "endpoint gets a limit only if you set one here or for the arm."
        ),
    )
    temperature: Number = Field(
        default=0.0,
        ge=0,
        le=2,
        description=(
            "Sampling temperature, unless the request sets one. Armwise sends a temperature to an endpoint "
            "only if the configuration or the request sets one."
        ),
    )
    reasoning: Effort | None = Field(
        default=None,
        description=(
            "Reasoning effort (`reasoning_effort`) for engines that support it, unless the request sets one. "
            "Null leaves the effort to the model."
        ),
    )
    cite: bool = Field(
        default=False,
        description=(
            "Whether the model cites passages by number, such as [1]. The reply lists the cited passages."
        ),
    )
    quote: bool = Field(
        default=False,
        description=(
            "Whether to quote the best passage instead of generating an answer. Use this if the model is "
            "only a placeholder. The answer says that nothing was found if the passages contain at most a "
            "quarter of the question's words. Stop words do not count. The model still answers if the arm "
            "searches nothing. It also answers if the request has tools, a response format or a limit "
            "below 200 tokens."
        ),
    )

    @property
    def asked_temperature(self) -> float | None:
        """The sampling temperature that somebody has named; None where nobody has."""
        return self.temperature if "temperature" in self.model_fields_set else None

    @property
    def limit(self) -> int | None:
        """Most tokens of an answer where a request names no limit; None leaves it to the model."""
        return (
            None if self.prompt == AS_SENT and "max_tokens" not in self.model_fields_set else self.max_tokens
        )

    def adapt(self, *, searches: bool) -> "Answering":
        """Return how an arm writes that searches, or that searches nothing and has no prompt of its own."""
        if searches or "prompt" in self.model_fields_set:
            return self
        return self.model_copy(update={"prompt": AS_SENT})

    def identity(self) -> dict[str, Any]:
        """Return what answers depend on, for results that are kept."""
        return self.model_dump(mode="json")

    def over(self, own: WritingSpec) -> "Answering":
        """Return how an arm writes that differs in what it names; one with a model of its own asks it."""
        if not own.model_fields_set:
            return self
        quote = self.quote and own.llm is None
        return self.model_copy(update={**own.model_dump(exclude_none=True), "quote": quote})


class PromptSpec(BaseModel):
    """Your instructions for the language model, as a system message."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    with_passages: str = Field(
        description=f"Instructions for a question with passages, inserted at `{PASSAGES}`."
    )
    without_passages: str = Field(min_length=1, description="Instructions for a question without passages.")

    @model_validator(mode="after")
    def _check_place(self) -> Self:
        if (n := self.with_passages.count(PASSAGES)) != 1:
            raise ValueError(f"with_passages: {PASSAGES} must occur once, but occurs {n} times")
        return self

    @property
    def template(self) -> Template:
        """The prompt as it is filled in."""
        return Template(self.with_passages, self.without_passages)


Names = Annotated[tuple[str, ...], Field(min_length=1)]
Counts = Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)]


class PipelineGrid(BaseModel):
    """A grid of arms: each way to retrieve, combined with each way to write an answer."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    retrieval: Names = Field(description="Names of the arms that are copied.")
    llm: Names = Field(default=(DEFAULT,), description="Names of language models.")
    prompt: Names | None = Field(
        default=None,
        description=("Names of prompts. Here and below, null means the value from `answering`."),
    )
    passages: Counts | None = Field(default=None, description="Numbers of passages.")
    reasoning: Annotated[tuple[Effort, ...], Field(min_length=1)] | None = Field(
        default=None, description="Reasoning efforts."
    )

    def members(self, finds_nothing: Iterable[str] = ()) -> Iterator[tuple[str, str, WritingSpec]]:
        """Yield the name of each pipeline, that of its retrieval, and how it writes.

        Args:
            finds_nothing: Arms that retrieve nothing. A pipeline of one is named after its model alone, and
                one pipeline stands for all numbers of passages.

        >>> grid = PipelineGrid(retrieval=("none", "bm25"), llm=("small",), passages=(2, 4))
        >>> [name for name, *_ in grid.members(["none"])]
        ['small', 'bm25-small-p2', 'bm25-small-p4']
        """
        empty, names = frozenset(finds_nothing), set[str]()
        choices = [getattr(self, name) or (None,) for name in _AXES]
        for retrieval, *values in product(self.retrieval, *choices):
            given = {name: value for name, value in zip(_AXES, values, strict=True) if value is not None}
            if retrieval in empty:
                given.pop("passages", None)
            parts = (f"{_AXES[name]}{value}" for name, value in given.items())
            name = "-".join(parts if retrieval in empty else (retrieval, *parts))
            if name not in names:
                names.add(name)
                yield name, retrieval, WritingSpec.model_validate(given)


_AXES = {
    "llm": "",
    "prompt": "",
    "passages": "p",
    "reasoning": "r.",
}
"""Names of a grid's axes, and what their values begin with in the name of a pipeline."""
