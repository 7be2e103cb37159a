"""An ensemble of arms: each gives passages and an answer, and one answer is selected.

It returns the passages of the selected answer. The turn writes its own answer from them,
with one more call of the language model.
"""

import logging
import re
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from armwise.arms.base import Arm, ArmError, Passage, Progress, Query, Retrieval
from armwise.arms.indexes import PassageVectors, prepare_vectors
from armwise.arms.llm import (
    MESSAGE_TOKENS,
    UNPROMPTED,
    Bound,
    GeneratorError,
    Message,
    Prompt,
    Write,
    answer_bound,
    answer_to,
    most_tokens,
    prompts,
    quotation,
)
from armwise.arms.relative_paths import LocalName
from armwise.arms.retrievers.kind import (
    AnswerSelector,
    BoundOf,
    Kind,
    MemberNames,
    Members,
    Resources,
    SelectorSpec,
)
from armwise.arms.tokenizer import normalised

logger = logging.getLogger(__name__)

SYSTEM = f"You pick the best answer to a question. {quotation.ONLY_DATA}"

ASK = (
    "Question: {question}\n\n<answers>\n{answers}\n</answers>\n\nWhich answer is best? Write only its number."
)

AGAIN = "Write only a number from 1 to {count}."

SELECT_TOKENS = 8
"""Most tokens of a selection: a number, and perhaps a word before it."""

SELECT_ATTEMPTS = 2

NUMBER_TOKENS = 4
"""Tokens of the number before each listed answer."""


class EnsembleParams(BaseModel):
    """Parameters of an ensemble."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    arms: MemberNames = Field(description="Names of the arms that are run in parallel.")
    select: Literal["vote", "llm", "learned"] = Field(
        "vote",
        description="`vote` takes the most frequent answer, of several that of the earliest arm; "
        "`llm` lets the language model select, at one more call; `learned` lets a trained router select.",
    )
    router: LocalName | None = Field(
        None,
        validate_default=True,
        description="Folder of a router of stage answered that `armwise train` fitted to just these arms; "
        "train again into another folder, because the log identifies the arm by this one.",
    )
    backbone: str | None = Field(
        None, validate_default=True, description="Sentence encoder that the router was trained with."
    )
    form: prompts.Form = Field(
        prompts.Form.DIRECT,
        description="Form of a member's answer; for a router, the one of its training.",
    )
    word_budget: int = Field(400, ge=1, description="Words of passages that an answer is written from.")
    max_tokens: int = Field(32, ge=1, description="Most tokens of a member's answer.")

    @field_validator("router", "backbone")
    @classmethod
    def _of_learned(cls, value: str | None, info: ValidationInfo) -> str | None:
        """Refuse `learned` without a router, and a router without `learned`."""
        select = info.data.get("select")
        if select == "learned" and not value:
            raise ValueError("`select: learned` needs it")
        if select in ("vote", "llm") and value is not None:
            raise ValueError("only `select: learned` takes it")
        return value

    @property
    def writing(self) -> prompts.Writing:
        """Settings of the members' answers."""
        return prompts.Writing(self.form, self.word_budget, self.max_tokens)


@dataclass(frozen=True, slots=True)
class SelectorInputs:
    """A trained selector and its inputs.

    Attributes:
        selector: The selector.
        backbone: Name of the sentence encoder for the question.
        vectors: Vectors of the passages from the same encoder.
    """

    selector: AnswerSelector
    backbone: str
    vectors: PassageVectors


@dataclass(frozen=True, slots=True)
class MemberAnswer:
    """A member's retrieval, the passages that the model read, its answer, and the tokens of both."""

    found: Retrieval
    read: tuple[Passage, ...]
    answer: str
    tokens: int


class EnsembleArm:
    """Runs all members in parallel, answers from each one's passages, and returns those of the best answer.

    A failed member is left out. The vote decides if the language model fails or writes no valid number in two
    attempts; with a router also if any member fails, since a router compares all of them. Steps and tokens
    are summed over the members that answered.

    Source: Retriever Portfolios, 2026, arXiv:2605.31176: members in parallel, then a selector.
    """

    def __init__(
        self,
        name: str,
        members: Sequence[Arm],
        params: EnsembleParams,
        write: Write,
        learned: SelectorInputs | None = None,
    ) -> None:
        self.name = name
        self.backbones = frozenset(_backbones(params)).union(*(member.backbones for member in members))
        self._members = tuple(members)
        self._params = params
        self._write = write
        self._learned = learned

    def search(self, query: Query, k: int) -> Retrieval:
        """Return the passages of the selected answer. Raises ArmError when every member fails."""
        depth = k
        if self._learned is not None:
            query.embedding(self._learned.backbone, arm=self.name)  # fail before any cost
            depth = max(k, self._learned.selector.k)
        # the number of passages of the answers on which the router was trained
        read = self._learned.selector.k if self._learned else None
        outcomes = run_members(self._members, query, depth, read, self._params.writing, self._write)
        answered = [outcome for outcome in outcomes if isinstance(outcome, MemberAnswer)]
        if not answered:
            raise all_failed(self.name, self._members, outcomes)
        at, tokens = self._select(query, answered)
        return Retrieval(
            answered[at].found.passages[:k],
            steps=sum(each.found.steps for each in answered),
            tokens=tokens + sum(each.tokens for each in answered),
        )

    def _select(self, query: Query, answered: Sequence[MemberAnswer]) -> tuple[int, int]:
        """Return the index of the selected answer, and the tokens spent on the selection."""
        answers, chosen, tokens = [each.answer for each in answered], None, 0
        if self._params.select == "llm":
            chosen, tokens = self._ask_model(query.text, answers)
        elif self._learned is not None and len(answered) == len(self._members):
            passages = [each.read for each in answered]
            vectors = self._learned.vectors.of({passage.id for read in passages for passage in read})
            try:
                chosen = self._learned.selector.select(query, answers, passages, vectors)
            except ArmError as error:
                logger.warning("arm %r votes: %s", self.name, error)
        return vote(answers) if chosen is None else chosen, tokens

    def _ask_model(self, question: str, answers: Sequence[str]) -> tuple[int | None, int]:
        """Return the index of the answer that the language model selects, if any, and the tokens spent."""
        first: dict[str, int] = {}
        for index, answer in enumerate(answers):
            first.setdefault(normalised(answer), index)
        first.pop("", None)
        shown = {str(number): index for number, index in enumerate(first.values(), start=1)}
        if len(shown) < 2:
            return None, 0
        listed = "\n".join(f"{number}. {quotation.one_line(answers[at])}" for number, at in shown.items())
        messages: tuple[Message, ...] = (
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": ASK.format(question=question, answers=listed)},
        )
        tokens = 0
        for _ in range(SELECT_ATTEMPTS):
            try:
                text, last = self._write(Prompt(messages, SELECT_TOKENS))
            except GeneratorError:
                break
            tokens += last.prompt_tokens + last.completion_tokens
            number = re.search(r"\d+", text)
            if number and number[0] in shown:
                return shown[number[0]], tokens
            again = AGAIN.format(count=len(shown))
            messages += ({"role": "assistant", "content": text}, {"role": "user", "content": again})
        return None, tokens


def run_members(
    members: Sequence[Arm], query: Query, k: int, read: int | None, writing: prompts.Writing, write: Write
) -> list[MemberAnswer | Exception]:
    """Run members in parallel, and return the passages and the answer of each, or its error.

    Args:
        members: At least one arm.
        query: The question.
        k: Passages to search for.
        read: Passages that an answer is written from; None: all.
        writing: Settings of an answer.
        write: Prompts the language model.
    """

    def run(member: Arm) -> MemberAnswer | Exception:
        try:
            retrieval = member.search(query, k)
            passages = retrieval.passages[:read]
            answer = answer_to(writing.prompt(query.text, passages), writing, write)
        except (ArmError, GeneratorError) as error:
            return error
        return MemberAnswer(retrieval, passages, answer.text, retrieval.tokens + answer.tokens)

    # a new pool: in a shared one, a nested ensemble could wait for a thread that waits for it
    with ThreadPoolExecutor(len(members), thread_name_prefix="answers") as pool:
        # members prompt and embed in the context of this turn
        running = [pool.submit(copy_context().run, run, member) for member in members]
        return [future.result() for future in running]


def all_failed(name: str, members: Sequence[Arm], outcomes: Sequence[MemberAnswer | Exception]) -> ArmError:
    """Return the error of an arm whose members all failed."""
    errors = "; ".join(f"{member.name}: {outcome}" for member, outcome in zip(members, outcomes, strict=True))
    return ArmError(f"every member of arm {name!r} failed: {errors}")


def vote(answers: Sequence[str]) -> int:
    """Return the index of the most frequent answer; of tied answers the first.

    Answers are compared after `normalised`; an empty answer loses to any other.

    >>> vote(["London", "Paris", "paris."])
    1
    """
    every = [normalised(answer) for answer in answers]
    votes = Counter(every)
    return max(range(len(every)), key=lambda index: (every[index] != "", votes[every[index]]))


def _backbones(params: EnsembleParams) -> tuple[str, ...]:
    return () if params.backbone is None else (params.backbone,)


def _selector_spec(params: EnsembleParams, have: Resources) -> SelectorSpec | None:
    """Return the spec of the selector, if there is a router."""
    if params.router is None or params.backbone is None:
        return None
    encoder = have.backbones[params.backbone]
    return SelectorSpec(Path(params.router), params.arms, params.backbone, encoder, params.writing)


def _prepare(params: EnsembleParams, have: Resources, progress: Progress | None) -> None:
    """Check the router, and embed the passages for it. Raises ArmBuildError."""
    if spec := _selector_spec(params, have):
        have.open_selector(spec)
        prepare_vectors(have.corpus, have.indexes, spec.encoder, progress)


def _build(name: str, params: EnsembleParams, have: Resources, member: Members) -> EnsembleArm:
    learned = None
    if spec := _selector_spec(params, have):
        vectors = have.shared(
            ("passage vectors", spec.encoder),
            lambda: PassageVectors(have.corpus, have.indexes, spec.encoder),
        )
        learned = SelectorInputs(have.open_selector(spec), spec.backbone, vectors)
    return EnsembleArm(name, [member(other) for other in params.arms], params, have.write, learned)


def answers_bound(arms: Sequence[str], writing: prompts.Writing, member: BoundOf) -> Bound:
    """Return the bound of the tokens that the model reads and writes in `run_members` with these arms."""
    return sum(map(member, arms), UNPROMPTED) + answer_bound(writing) * len(arms)


def _bound(params: EnsembleParams, member: BoundOf) -> Bound:
    """Return the bound of the members' searches and answers, and of the selection by the model."""
    answers = answers_bound(params.arms, params.writing, member)
    if params.select != "llm":
        return answers
    listed = len(params.arms) * (params.max_tokens + NUMBER_TOKENS)
    call = Bound.of_call(SYSTEM + ASK, SELECT_TOKENS, read=listed)
    again = SELECT_TOKENS + most_tokens(AGAIN) + 2 * MESSAGE_TOKENS
    return answers + call * SELECT_ATTEMPTS + Bound(read=again) * (SELECT_ATTEMPTS - 1)


KIND = Kind(
    "ensemble",
    "runs several arms, and selects among their answers",
    EnsembleParams,
    _build,
    _prepare,
    backbones=_backbones,
    members=lambda params: params.arms,
    models=lambda params: () if params.router is None else (params.router,),
    steps=lambda params: float(len(params.arms)),
    filters=True,
    draws=True,
    bound=_bound,
    example={"arms": ["none", "bm25", "dense"]},
)
