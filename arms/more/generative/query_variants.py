"""Query variants: a language model writes further queries for a question, and all of them are searched.

rewrite    the question in other words: synonyms, full names
decompose  simpler questions that make up the question, one fact each
hyde       a passage that would answer it, true or false: passages resemble passages
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import override

from armwise.arms.base import Arm, ArmError, Embed, Query, Retrieval
from armwise.arms.llm import Bound, GeneratorError, Prompt, Write, prompts, quotation
from armwise.arms.retrievers.fusion import DEPTH, fuse
from armwise.arms.retrievers.kind import BoundOf, Kind, Members, Resources
from armwise.arms.tokenizer import words

P = TypeVar("P", bound=BaseModel)

QUESTION_WORDS = 200
"""Most words of the question that the model is shown."""

VARIANT_WORDS = 200
"""Most words of a variant; the rest is cut off."""

MAX_TOKENS = 128
"""Most tokens that the model writes."""

MOST = 3
"""Most variants that the model writes, besides a passage of `hyde`."""

Way = Literal["rewrite", "decompose", "hyde"]

SYSTEM: dict[Way, str] = {
    "rewrite": "You write search queries, never answers. Write {n} different search queries that would find "
    "texts that answer the question: use other words, synonyms and full names. One query a line.",
    "decompose": "You write search queries, never answers. Split the question into at most {n} simpler "
    "questions, each asking for one fact. One question a line.",
    "hyde": "Write a short passage, as of an encyclopedia, that answers the question. If you do not know the "
    "answer, write what such a passage could look like.",
}

_LISTED = re.compile(r"^\W{0,4}(\d{1,2}[.):]|[-*])\s{1,4}")


class WritesQueries(Kind[P]):
    """The base of arms that prompt a language model and search another arm once a step.

    Args:
        name: Name of the arm.
        base: The arm that is searched.
        params: Parameters of its kind.
        write: Prompts the model.
        embed: Embeds the texts of the model.
    """

    embeds_texts = filters = True

    def __init__(self, name: str, base: Arm, params: P, write: Write, embed: Embed) -> None:
        self.name = name
        self.backbones = base.backbones
        self._base = base
        self._params = params
        self._write = write
        self._embed = embed

    @classmethod
    @override
    def build(cls, name: str, params: P, have: Resources, member: Members) -> Self:
        (base,) = cls.members(params)
        return cls(name, member(base), params, have.write, have.embed)

    @classmethod
    @override
    def searches(cls, params: P, member: str) -> float:
        return cls.steps(params)

    def _prompt_model(self, prompt: Prompt, subject: str) -> tuple[str, int]:
        """Return the text of the model, and the tokens spent. Raises ArmError, naming `subject`."""
        try:
            text, last = self._write(prompt)
        except GeneratorError as error:
            raise ArmError(f"arm {self.name!r} got no {subject} from the language model: {error}") from error
        return text, last.prompt_tokens + last.completion_tokens

    def _embed_query(self, query: Query, text: str, seed: int) -> Query:
        """Return a query with this text and seed, restricted to the same passages as the question."""
        embeddings = self._embed(text, self.backbones) if self.backbones else {}
        return replace(query, text=text, embeddings=embeddings, seed=seed)


class QueryVariantsParams(BaseModel):
    """Parameters of an arm that searches variants of the question."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    arm: str = Field(description="Arm that is searched with every variant.")
    way: Way = Field(
        description=(
            "What the language model writes. `rewrite`: the question in other words. `decompose`: parts of "
            "the question. `hyde`: a passage that may answer the question."
        )
    )


class QueryVariantsArm(WritesQueries[QueryVariantsParams]):
    """Also searches with variants of the question that the language model writes.

    The rankings are fused by reciprocal rank.

    With `hyde` there is a single search: for the question followed by the passage that the model wrote, with
    the normalised mean of both embeddings. Texts without words, and variants that repeat the question or
    another variant, are left out; if none remains, the ranking is the base's.

    Source: Gao et al. 2022, Precise Zero-Shot Dense Retrieval without Relevance Labels, arXiv:2212.10496, for
    `hyde`; Wang et al. 2023, Query2doc, arXiv:2303.07678, for its words; Ma et al. 2023, Query Rewriting for
    Retrieval-Augmented Large Language Models, arXiv:2305.14283; Press et al. 2022, Measuring and Narrowing
    the Compositionality Gap in Language Models, arXiv:2210.03350, for `decompose`.
    """

    kind = "query_variants"
    params = QueryVariantsParams
    example: ClassVar = {"arm": "rrf", "way": "rewrite"}

    @classmethod
    @override
    def steps(cls, params: QueryVariantsParams) -> float:
        return 1.0 if params.way == "hyde" else 1.0 + MOST

    @classmethod
    @override
    def bound(cls, params: QueryVariantsParams, member: BoundOf) -> Bound:
        """Return the bound of one call, and of a search for the question and for each text that it writes."""
        call = Bound.from_call(f"{SYSTEM[params.way]} {quotation.ONLY_DATA}", MAX_TOKENS)
        base = member(params.arm)
        if params.way == "hyde":
            return call + base.searching(1, MAX_TOKENS)
        return call + base + base.searching(0, MAX_TOKENS) * MOST

    @override
    def search(self, query: Query, k: int) -> Retrieval:
        """Return at most `k` passages; all searches and the model's tokens are charged. Raises ArmError."""
        params = self._params
        text, spent = self._write_variants(query.text)
        if params.way == "hyde":
            queries = [self._with_passage(query, text)]
        else:
            new = variants(text, query.text, MOST)
            queries = [
                query,
                *(
                    self._embed_query(query, variant, query.seed + n)
                    for n, variant in enumerate(new, start=1)
                ),
            ]
        if len(queries) == 1:
            retrieval = self._base.search(queries[0], k)
            return Retrieval(retrieval.passages, retrieval.steps, retrieval.tokens + spent)
        every = [self._base.search(variant, max(k, DEPTH)) for variant in queries]
        return Retrieval(
            fuse([retrieval.passages for retrieval in every])[:k],
            sum(retrieval.steps for retrieval in every),
            sum(retrieval.tokens for retrieval in every) + spent,
        )

    def _write_variants(self, question: str) -> tuple[str, int]:
        """Return the text of the model for a question, and the tokens spent. Raises ArmError."""
        system = f"{SYSTEM[self._params.way].format(n=MOST)} {quotation.ONLY_DATA}"
        prompt = Prompt(
            (
                {"role": "system", "content": system},
                {
                    "role": "user",
                    "content": quotation.enclose("question", prompts.cut(question, QUESTION_WORDS)),
                },
            ),
            MAX_TOKENS,
        )
        return self._prompt_model(prompt, f"{self._params.way} of the question")

    def _with_passage(self, query: Query, passage: str) -> Query:
        """Return the question followed by a written passage. Raises MissingEmbeddingError."""
        passage = prompts.cut(passage, VARIANT_WORDS)
        if not words(passage):
            return query
        written = self._embed_query(query, passage, query.seed).embeddings
        mixed = {
            backbone: mean_direction([query.embedding(backbone, arm=self.name), vector])
            for backbone, vector in written.items()
        }
        return replace(query, text=f"{query.text}\n{passage}", embeddings=mixed)


def variants(text: str, question: str, most: int) -> list[str]:
    r"""Return the distinct queries in a text of a model, which has one per line.

    >>> variants("1. Who built it?\n- who built it\n2) When was it opened?", "Who built what?", most=3)
    ['Who built it?', 'When was it opened?']
    """
    earlier_queries, kept = [[], words(question)], list[str]()
    for line in text.splitlines():
        variant = prompts.cut(_LISTED.sub("", line, count=1).strip(" \t\"'`*"), VARIANT_WORDS)
        if words(variant) not in earlier_queries and len(kept) < most:
            earlier_queries.append(words(variant))
            kept.append(variant)
    return kept


def mean_direction(vectors: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Return the normalised mean of unit vectors, shape (dim,); if they cancel out, the first vector."""
    total = np.sum(vectors, axis=0)
    length = float(np.linalg.norm(total))
    return np.asarray(total / length, dtype=np.float32) if length > 0.0 else vectors[0]
