"""An ensemble of arms: its members give passages and an answer each, and one answer is selected.

    question --ranker--> the best `most` members --search, write--> answers --select--> one answer

Without a ranker, all members run. The turn sends the selected answer as it is, unless the request asks for
something that the members did not know of, such as a form or instructions.
"""

import logging
import re
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from typing_extensions import override

from armwise.arms.base import Arm, ArmError, Passage, Progress, Query, Retrieval, StageRun
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
    MemberRanker,
    Members,
    RankerSpec,
    Resources,
    SelectorSpec,
)
from armwise.arms.tokenizer import normalise

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


MOST = 3
"""Members that answer a question where a ranker chooses them, unless there are fewer.

The paper has 2 or 3. Of two answers that differ, a vote always selects that of the first member.
"""


class EnsembleParams(BaseModel):
    """Parameters of an ensemble."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    arms: MemberNames = Field(description="Arms that run in parallel.")
    select: Literal["vote", "llm", "learned"] = Field(
        "vote",
        description=(
            "How an answer is selected. `vote`: the most frequent answer wins. In a tie, the arm that you "
            "listed first decides. `llm`: the language model selects, which takes one more call. "
            "`learned`: a trained router selects."
        ),
    )
    router: LocalName | None = Field(
        None,
        validate_default=True,
        description=(
            "Folder of the router that `learned` uses. It must have stage `answered` and be trained on "
            "these arms."
        ),
    )
    ranker: LocalName | None = Field(
        None,
        description=(
            "Folder of a router. Only the arms that it ranks first run. It must have stage `question` and "
            "be trained on at least these arms. If null, all arms run."
        ),
    )
    most: int | None = Field(
        None,
        ge=1,
        validate_default=True,
        description=f"Number of arms that run if there is a ranker. Null means {MOST}, or all arms if "
        "there are fewer.",
    )
    backbone: str | None = Field(
        None,
        validate_default=True,
        description="Sentence encoder that the router or ranker was trained with.",
    )
    form: prompts.Form = Field(
        prompts.Form.DIRECT,
        description="Form of each arm's answer. With a router, use the form from its training.",
    )
    word_budget: int = Field(400, ge=1, description="Maximum passage words per answer.")
    max_tokens: int = Field(32, ge=1, description="Maximum tokens in each arm's answer.")

    @field_validator("router")
    @classmethod
    def _check_router(cls, value: str | None, info: ValidationInfo) -> str | None:
        """Refuse `learned` without a router, and a router without `learned`."""
        select = info.data.get("select")
        if select == "learned" and not value:
            raise ValueError("`select: learned` needs a router")
        if select in ("vote", "llm") and value is not None:
            raise ValueError("only `select: learned` takes a router")
        return value

    @field_validator("ranker")
    @classmethod
    def _check_ranker(cls, value: str | None, info: ValidationInfo) -> str | None:
        """Refuse a ranker with `learned`, whose router has learned from the answers of all members."""
        if value is not None and info.data.get("select") == "learned":
            raise ValueError("`select: learned` compares the answers of all members: remove `ranker`")
        return value

    @field_validator("most")
    @classmethod
    def _check_most(cls, value: int | None, info: ValidationInfo) -> int | None:
        """Refuse a number without a ranker, or of more members than there are, and fill in the default."""
        n_arms = len(info.data.get("arms", ()))
        if info.data.get("ranker") is None:
            if value is not None:
                raise ValueError(
                    "`most` needs a ranker, which chooses the members to run: name one in `ranker`"
                )
            return None
        if value is not None and value > n_arms:
            raise ValueError(f"there are only {n_arms} members")
        return min(MOST, n_arms) if value is None else value

    @field_validator("backbone")
    @classmethod
    def _check_backbone(cls, value: str | None, info: ValidationInfo) -> str | None:
        """Refuse a router without its backbone, and a backbone without a router."""
        learned, ranked = info.data.get("select") == "learned", info.data.get("ranker") is not None
        if (learned or ranked) and not value:
            raise ValueError(f"{'`select: learned`' if learned else 'a ranker'} needs a backbone")
        if not (learned or ranked) and value is not None:
            raise ValueError("only `select: learned` or a ranker takes a backbone")
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


class EnsembleArm(Kind[EnsembleParams]):
    """Runs several arms, or [those ranked first](#an-ensemble-with-a-router), and selects among the answers.

    The arms run in parallel, and each answers from its own passages. A failed member is left out. The vote
    decides if the language model fails or writes no valid number in two attempts; with a router also if any
    member fails, since a router compares all of them. Of tied answers, that of the member that the ranker
    puts first is selected. Steps and tokens are summed over the members that answered.

    Source: Retriever Portfolios, 2026, arXiv:2605.31176: a router ranks the members of a portfolio, the first
    few retrieve and answer in parallel, then a selector.

    Args:
        name: The arm.
        members: In the order of `params.arms`.
        params: Parameters.
        write: Prompts the language model.
        learned: Trained selector; None: the language model or the vote selects.
        ranker: Ranks the members; None: all of them run.
    """

    kind = "ensemble"
    params = EnsembleParams
    example: ClassVar = {"arms": ["none", "bm25", "dense"]}
    filters = draws = True

    def __init__(
        self,
        name: str,
        members: Sequence[Arm],
        params: EnsembleParams,
        write: Write,
        learned: SelectorInputs | None = None,
        ranker: MemberRanker | None = None,
    ) -> None:
        self.name = name
        self.backbones = frozenset(self.encoders(params)).union(*(member.backbones for member in members))
        self._members = tuple(members)
        self._params = params
        self._write = write
        self._learned = learned
        self._ranker = ranker

    @classmethod
    @override
    def steps(cls, params: EnsembleParams) -> float:
        return float(params.most or len(params.arms))

    @classmethod
    @override
    def searches(cls, params: EnsembleParams, member: str) -> float:
        return cls.steps(params) / len(params.arms)

    @classmethod
    @override
    def bound(cls, params: EnsembleParams, member: BoundOf) -> Bound:
        """Return the bound of the members' searches and answers, and of the selection by the model."""
        answers = answers_bound(params.arms, params.writing, member, params.most)
        if params.select != "llm":
            return answers
        listed = (params.most or len(params.arms)) * (params.max_tokens + NUMBER_TOKENS)
        call = Bound.from_call(SYSTEM + ASK, SELECT_TOKENS, read=listed)
        again = SELECT_TOKENS + most_tokens(AGAIN) + 2 * MESSAGE_TOKENS
        return answers + call * SELECT_ATTEMPTS + Bound(read=again) * (SELECT_ATTEMPTS - 1)

    @classmethod
    @override
    def prepare(cls, params: EnsembleParams, have: Resources, progress: Progress | None) -> None:
        """Check the routers, and embed the passages for the selector. Raises ArmBuildError."""
        if ranking := _ranker_spec(params, have):
            have.open_selector(ranking)
        if spec := _selector_spec(params, have):
            have.open_selector(spec)
            prepare_vectors(have.corpus, have.indexes, spec.encoder, progress)

    @classmethod
    @override
    def build(cls, name: str, params: EnsembleParams, have: Resources, member: Members) -> Self:
        learned = ranker = None
        if ranking := _ranker_spec(params, have):
            ranker = have.open_selector(ranking)
        if spec := _selector_spec(params, have):
            vectors = have.share(
                ("passage vectors", spec.encoder),
                lambda: PassageVectors(have.corpus, have.indexes, spec.encoder),
            )
            learned = SelectorInputs(have.open_selector(spec), spec.backbone, vectors)
        members = [member(other) for other in params.arms]
        return cls(name, members, params, have.write, learned, ranker)

    @override
    def search(self, query: Query, k: int) -> Retrieval:
        """Return the selected answer, its passages, and a stage with the members that ran.

        Raises:
            ArmError: Every member that ran has failed, or they cannot be ranked.
        """
        depth = k
        if self._params.backbone is not None:
            query.embedding(self._params.backbone, arm=self.name)  # fail before any cost
        if self._learned is not None:
            depth = max(k, self._learned.selector.k)
        # the number of passages of the answers on which the router was trained
        read = self._learned.selector.k if self._learned else None
        members = self._members
        if self._ranker is not None:
            members = tuple(members[at] for at in self._ranker.rank(query)[: self._params.most])
        outcomes = run_members(members, query, depth, read, self._params.writing, self._write)
        names = [member.name for member in members]
        ran = {at: each for at, each in enumerate(outcomes) if isinstance(each, MemberAnswer)}
        if not ran:
            raise all_failed(self.name, members, outcomes)
        answered = list(ran.values())
        picked, tokens = self._select(query, answered)
        best = answered[picked]
        stage = StageRun(
            tuple(names),
            failed=tuple(name for at, name in enumerate(names) if at not in ran),
            steps=sum(each.found.steps for each in answered),
            tokens=tokens + sum(each.tokens for each in answered),
            picked=names[list(ran)[picked]],
        )
        return Retrieval(best.found.passages[:k], stage.steps, stage.tokens, (stage,), answer=best.answer)

    def _select(self, query: Query, answered: Sequence[MemberAnswer]) -> tuple[int, int]:
        """Return the index of the selected answer, and the tokens spent on the selection."""
        answers, chosen, tokens = [each.answer for each in answered], None, 0
        if self._params.select == "llm":
            chosen, tokens = self._ask_model(query.text, answers)
        elif self._learned is not None and len(answered) == len(self._members):
            passages = [each.read for each in answered]
            vectors = self._learned.vectors.look_up({passage.id for read in passages for passage in read})
            try:
                chosen = self._learned.selector.select(query, answers, passages, vectors)
            except ArmError as error:
                logger.warning("arm %r votes: %s", self.name, error)
        return vote(answers) if chosen is None else chosen, tokens

    def _ask_model(self, question: str, answers: Sequence[str]) -> tuple[int | None, int]:
        """Return the index of the answer that the language model selects, if any, and the tokens spent."""
        first: dict[str, int] = {}
        for index, answer in enumerate(answers):
            first.setdefault(normalise(answer), index)
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

    Answers are compared after `normalise`; an empty answer loses to any other.

    >>> vote(["London", "Paris", "paris."])
    1
    """
    every = [normalise(answer) for answer in answers]
    votes = Counter(every)
    return max(range(len(every)), key=lambda index: (every[index] != "", votes[every[index]]))


def _selector_spec(params: EnsembleParams, have: Resources) -> SelectorSpec | None:
    """Return the spec of the selector, if there is a router."""
    if params.router is None or params.backbone is None:
        return None
    encoder = have.backbones[params.backbone]
    return SelectorSpec(Path(params.router), params.arms, params.backbone, encoder, params.writing)


def _ranker_spec(params: EnsembleParams, have: Resources) -> RankerSpec | None:
    """Return the spec of the ranker, if there is one."""
    if params.ranker is None or params.backbone is None:
        return None
    encoder = have.backbones[params.backbone]
    return RankerSpec(Path(params.ranker), params.arms, params.backbone, encoder)


def answers_bound(
    arms: Sequence[str], writing: prompts.Writing, member: BoundOf, most: int | None = None
) -> Bound:
    """Return the bound of the tokens that the model reads and writes in `run_members`.

    Args:
        arms: The arms that may run.
        writing: Settings of their answers.
        member: Bound of a search of an arm.
        most: How many of them run; None: all.
    """
    searches = sum(map(member, arms), UNPROMPTED)  # which of them run is not known before the question
    return searches + answer_bound(writing) * (most or len(arms))
