"""Make questions from the user's corpus, each with the passages that answer it.

They are either extracted by rules, in seconds, or written by a language model, which then has to answer them
as a check; an estimate of its cost is printed before the first call.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from textwrap import shorten

from pydantic import BaseModel, ConfigDict, Field, model_validator
from rich.console import Console
from rich.table import Table
from rich.text import Text

from armwise.agent.config import AppConfig
from armwise.agent.lab.offline.score import open_corpus
from armwise.arms.base import Progress
from armwise.arms.corpus import Corpus
from armwise.arms.lab.jobs import digest_of_document
from armwise.arms.lab.synthesis import (
    PROMPTED,
    STYLES,
    Extraction,
    Made,
    Maker,
    Prompting,
    estimate_tokens,
    synthesize,
)
from armwise.arms.llm import LateWriter, catalog
from armwise.arms.suggestions import did_you_mean

SHOWN = 3
"""Questions of each style that are printed."""

WIDTH = 38
"""Characters of a printed question; longer questions are shortened."""


class Synthesis(BaseModel):
    """Settings of the questions to make."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    config: AppConfig = Field(description="Configuration with the corpus and the language model.")
    output: Path = Field(description="File of JSON lines. It must not exist.")
    questions: int = Field(default=1000, ge=1, description="Number of questions to make.")
    styles: dict[str, float] = Field(
        default_factory=dict,
        description="keywords, title, cloze, link or compare; with a language model keywords, natural "
        "or link. By default all. STYLE=WEIGHT makes more or fewer of one.",
    )
    with_model: bool | None = Field(
        default=None,
        description="Whether the language model writes the questions. By default it does if it is an "
        "endpoint or runs in vLLM.",
    )
    corpus: str | None = Field(
        default=None, description="An ingested corpus; by default that in the configuration."
    )
    seed: int = Field(
        default=0, ge=0, description="Seed that shuffles passages and chooses the style of each question."
    )
    at_once: int = Field(default=8, ge=1, le=1024, description="Prompts that run at once.")

    @model_validator(mode="after")
    def _check_styles(self) -> "Synthesis":
        styles = PROMPTED if self.prompts else STYLES
        for name, weight in self.styles.items():
            if name not in styles:
                way = "with" if self.prompts else "without"
                raise ValueError(f"no style {name!r} {way} a language model{did_you_mean(name, styles)}")
            if not 0.0 < weight < float("inf"):
                raise ValueError(f"style {name}: weight {weight} is not a positive number")
        return self

    @property
    def prompts(self) -> bool:
        """Whether a language model writes the questions."""
        if self.with_model is None:
            return isinstance(self.config.llm, catalog.EndpointSpec | catalog.VllmSpec)
        return self.with_model

    @property
    def shares(self) -> Mapping[str, float]:
        """The weight of each style."""
        return self.styles or dict.fromkeys(PROMPTED if self.prompts else STYLES, 1.0)


def make_questions(settings: Synthesis, console: Console, on_progress: Progress) -> list[Made]:
    """Write questions to `settings.output`, print the report, and return them.

    Args:
        settings: Settings of the questions.
        console: Where the report goes.
        on_progress: Called with the progress.

    Raises:
        ValueError: The output exists, its blocks are from other settings, or the passages gave no question;
            subclasses distinguish these.
        CorpusError: The corpus cannot be read.
        GeneratorError: The language model failed; the next run resumes from the finished blocks.
    """
    if settings.output.exists():
        raise ValueError(f"{settings.output} exists: choose another output, or delete it")
    config = settings.config.resolve_places()
    corpus = open_corpus(config, settings.corpus, on_progress)
    if not len(corpus):
        raise ValueError(
            "there are no documents to ask about: set `corpus` or `corpora` in the configuration"
        )
    maker = _maker(settings, config, corpus, console, on_progress)
    settings.output.parent.mkdir(parents=True, exist_ok=True)
    selection = synthesize(
        corpus, maker, settings.output, settings.questions, settings.shares, settings.seed, on_progress
    )
    _print_report(selection.kept, selection.duplicates, settings, console)
    return selection.kept


def _maker(
    settings: Synthesis, config: AppConfig, corpus: Corpus, console: Console, on_progress: Progress
) -> Maker:
    styles = tuple(settings.shares)
    extracted = () if settings.prompts else styles
    extraction = Extraction(corpus, extracted, settings.seed, on_progress)
    if not settings.prompts:
        return extraction
    calls, read, written = estimate_tokens(corpus, styles, settings.questions)
    per_read, per_written, *_ = catalog.find_prices(config.llm).per_kilotoken
    usd = (read * per_read + written * per_written) / 1000
    console.print(
        f"at least {calls:,} calls of the language model: about {read:,} tokens read and {written:,} "
        f"written, {usd:.2f} USD at its prices",
        highlight=False,
        soft_wrap=True,
    )
    model = digest_of_document(catalog.identify(config.llm))
    return Prompting(corpus, LateWriter(config.llm), styles, extraction, model, settings.at_once)


def _print_report(made: list[Made], duplicates: int, settings: Synthesis, console: Console) -> None:
    n_questions = settings.questions
    which = "one" if settings.config.corpora else "the"
    short = (
        f" of the {n_questions:,} asked for: {which} corpus gives no more" if len(made) < n_questions else ""
    )
    alike = f", {duplicates:,} left out as duplicates" if duplicates else ""
    console.print(
        f"{len(made):,} questions{short}{alike}; written to {settings.output}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    table = Table("style", "questions", "gold passages", "answered")
    for column in table.columns:
        column.no_wrap, column.min_width = True, len(str(column.header))
    for column in table.columns[1:]:
        column.justify = "right"
    table.add_column("such as", no_wrap=True)
    for style, n in Counter(question.style for question in made).items():
        of = [question for question in made if question.style == style]
        table.add_row(
            style,
            f"{n:,}",
            f"{sum(len(question.gold_ids) for question in of) / n:.1f}",
            f"{sum(bool(question.answers) for question in of) / n:.0%}",
            Text("\n".join(shorten(question.question, WIDTH, placeholder="...") for question in of[:SHOWN])),
        )
    console.print(table)
