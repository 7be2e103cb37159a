"""Vendi-RAG: retrieve, answer, judge the answer, and retrieve again with another diversity.

It adapts the diversity to each question, at two calls of the language model per round; a portfolio of Vendi
arms needs none.
"""

from collections.abc import Callable
from typing import ClassVar, Self

from pydantic import Field
from typing_extensions import override

from armwise.arms.base import Arm, ArmError, Progress, Query, Retrieval
from armwise.arms.llm import Bound, GeneratorError, Message, Prompt, Write, answer_bound, judge, prompts
from armwise.arms.more.vendi import VendiArm, VendiParams
from armwise.arms.retrievers.dense import prepare_index
from armwise.arms.retrievers.kind import BoundOf, Kind, Members, Resources
from armwise.number import Number

Retrieve = Callable[[Query, int, float], Retrieval]
"""Query, k and a diversity in [0, 1] -> the passages of a Vendi arm. Raises ArmError."""


SATISFIED = 0.9
"""Score of an answer that ends the search."""

WORD_BUDGET = 400
"""Words of passages that model and judge are shown."""

MAX_TOKENS = 64
"""Most tokens of the answer that is judged."""


class VendiRagParams(VendiParams):
    """Parameters of Vendi-RAG: those of a Vendi arm, and those of the loop."""

    diversity: Number = Field(0.8, ge=0.0, le=1.0, description="Weight of diversity in the first round.")
    rounds: int = Field(3, ge=1, le=100, description="Maximum rounds.")


class VendiRagArm(Kind[VendiRagParams]):
    """Retrieves, answers, judges the answer, and retrieves again with more or less diversity.

    The passages of the round with the best grade are returned, of tied rounds the first. The diversity of
    the next round is one minus the grade of this round. The search ends after the last round, with a
    satisfying answer, or when a diversity or a list of passages repeats. A missing grade also ends it; in
    the first round it is an error.

    Source: Rezaei and Dieng 2025, Vendi-RAG: Adaptively Trading-Off Diversity And
    Quality Significantly Improves Retrieval Augmented Generation With LLMs,
    arXiv:2502.11228.
    """

    kind = "vendi_rag"
    params = VendiRagParams
    example: ClassVar = {"backbone": "minilm"}
    features = ("diversity", "rounds")
    filters = searches_corpus = draws = True

    def __init__(self, name: str, retrieve: Retrieve, params: VendiRagParams, write: Write) -> None:
        self.name = name
        self.backbones = frozenset({params.backbone})
        self._retrieve = retrieve
        self._params = params
        self._write = write

    @classmethod
    @override
    def steps(cls, params: VendiRagParams) -> float:
        return float(params.rounds)

    @classmethod
    @override
    def bound(cls, params: VendiRagParams, member: BoundOf) -> Bound:
        """Return the bound of an answer and of its judge in each round; a diversity is tried once."""
        writing = prompts.Writing(prompts.Form.DIRECT, WORD_BUDGET, MAX_TOKENS)
        graded = judge.grade_bound(judge.ANSWER, answer_tokens=MAX_TOKENS, word_budget=WORD_BUDGET, retries=1)
        return (answer_bound(writing) + graded) * min(params.rounds, len(_diversities(params)))

    @classmethod
    @override
    def prepare(cls, params: VendiRagParams, have: Resources, progress: Progress | None) -> None:
        prepare_index(params, have, progress)

    @classmethod
    @override
    def build(cls, name: str, params: VendiRagParams, have: Resources, member: Members) -> Self:
        vendi_params = params.model_dump(include=set(VendiParams.model_fields))

        def arm(diversity: float) -> Arm:
            tuned = VendiParams.model_validate({**vendi_params, "diversity": diversity})
            return VendiArm.build(name, tuned, have, member)

        # these arms share their first stage
        arms = {diversity: arm(diversity) for diversity in _diversities(params)}
        return cls(name, lambda query, k, diversity: arms[diversity].search(query, k), params, have.write)

    @override
    def search(self, query: Query, k: int) -> Retrieval:
        """Return at most `k` passages; steps and tokens are those of all rounds.

        Raises:
            JudgeError: The judge wrote no grade in the first round.
            ArmError: The search or the language model failed.
        """
        try:
            return self._search(query, k)
        except GeneratorError as error:
            raise ArmError(f"arm {self.name!r} failed to answer or to judge: {error}") from error

    def _search(self, query: Query, k: int) -> Retrieval:
        diversity = self._params.diversity
        tried: set[float] = set()
        judged: dict[tuple[str, ...], tuple[float, Retrieval]] = {}
        steps = tokens = 0
        while len(tried) < self._params.rounds and diversity not in tried:
            tried.add(diversity)
            retrieval = self._retrieve(query, k, diversity)
            steps, tokens = steps + retrieval.steps, tokens + retrieval.tokens
            shown = tuple(passage.id for passage in retrieval.passages)
            if shown in judged:
                break
            answer, last = self._write(self._prompt(query.text, retrieval))
            tokens += last.prompt_tokens + last.completion_tokens
            try:
                verdict = self._judge(query.text, retrieval, answer)
            except judge.JudgeError as error:
                tokens += error.tokens
                if judged:
                    break
                raise judge.JudgeError(f"arm {self.name!r}: {error}", tokens) from error
            tokens += verdict.tokens
            judged[shown] = verdict.grade, retrieval
            if verdict.grade >= SATISFIED:
                break
            diversity = round(1.0 - verdict.grade, 1)  # to tenths, as whole grades are
        _, best = max(judged.values(), key=lambda scored: scored[0])
        return Retrieval(best.passages, steps, tokens)

    def _prompt(self, question: str, retrieval: Retrieval) -> Prompt:
        conversation: list[Message] = [{"role": "user", "content": question}]
        messages = prompts.answer_prompt(conversation, retrieval.passages, word_budget=WORD_BUDGET)
        return Prompt(messages, MAX_TOKENS)

    def _judge(self, question: str, retrieval: Retrieval, answer: str) -> judge.Grade[float]:
        return judge.grade(
            self._write,
            judge.ANSWER,
            question,
            retrieval.passages,
            answer,
            word_budget=WORD_BUDGET,
        )


def _diversities(params: VendiRagParams) -> set[float]:
    """Return all diversities that a grade can lead to."""
    return {params.diversity, *(tenth / 10 for tenth in range(11))}
