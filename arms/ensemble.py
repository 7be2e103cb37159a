"""Several arms at once: each finds its passages, each gets an answer, one answer is picked.

What is returned are the passages behind the picked answer. The turn writes its own
answer from them, which is one more call of the language model.
"""

import re
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from arms.agreement import normalised
from arms.base import Arm, ArmError, Query, Retrieval
from arms.generator import GeneratorError, Message, Prompt
from arms.kinds import Kind, Members, Resources, Write
from arms.prompts import answer_prompt

SYSTEM = "You pick the best answer to a question."

ASK = "Question: {question}\n\n{answers}\n\nWhich answer is best? Write only its number."

AGAIN = "Write only a number from 1 to {count}."

PICK_TOKENS = 8
"""Room for a number and a word before it."""

PICK_ATTEMPTS = 2


class EnsembleParams(BaseModel):
    """Parameters of an ensemble."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    arms: tuple[str, ...] = Field(min_length=2, description="Names of the arms that are run at once.")
    select: Literal["vote", "llm"] = Field(
        "vote",
        description="`vote` takes what most members answer, of several the one of the earliest arm; "
        "`llm` has the language model pick, at one call more.",
    )
    word_budget: int = Field(400, ge=1, description="Words of passages that an answer is written from.")
    max_tokens: int = Field(32, ge=1, description="Most tokens of a member's answer.")


@dataclass(frozen=True, slots=True)
class _Answered:
    """What a member found, and what the language model answered from it."""

    found: Retrieval
    answer: str
    tokens: int


class Ensemble:
    """Run all members at once, have each one's passages answered, and return the winner's passages.

    A member that fails is left out. Where the language model picks no answer that it was
    shown, asked twice, or fails at picking, the vote decides. Steps and tokens are
    those of all members that answered: each is paid for.

    Source: Retriever Portfolios, 2026, arXiv:2605.31176: members in parallel, then a selector.
    """

    def __init__(self, name: str, members: Sequence[Arm], params: EnsembleParams, write: Write) -> None:
        self.name = name
        self.backbones = frozenset[str]().union(*(member.backbones for member in members))
        self._members = tuple(members)
        self._params = params
        self._write = write

    def search(self, query: Query, k: int) -> Retrieval:
        """Return the passages behind the answer that won. Raises ArmError when every member fails."""
        # Threads of its own: an ensemble among the members never waits for a thread that waits for it.
        with ThreadPoolExecutor(len(self._members), thread_name_prefix="ensemble") as pool:
            outcomes = [*pool.map(lambda member: self._run(member, query, k), self._members)]
        answered = [outcome for outcome in outcomes if isinstance(outcome, _Answered)]
        if not answered:
            told = "; ".join(
                f"{member.name}: {outcome}" for member, outcome in zip(self._members, outcomes, strict=True)
            )
            raise ArmError(f"every member of arm {self.name!r} failed: {told}")
        answers = [each.answer for each in answered]
        picked, tokens = self._pick(query.text, answers) if self._params.select == "llm" else (None, 0)
        winner = answered[vote(answers) if picked is None else picked]
        return Retrieval(
            winner.found.passages,
            steps=sum(each.found.steps for each in answered),
            tokens=tokens + sum(each.tokens for each in answered),
        )

    def _run(self, member: Arm, query: Query, k: int) -> _Answered | Exception:
        """Return what a member found with its answer, or why it failed."""
        try:
            found = member.search(query, k)
            conversation: list[Message] = [{"role": "user", "content": query.text}]
            messages = answer_prompt(conversation, found.passages, word_budget=self._params.word_budget)
            answer, last = self._write(Prompt(messages, self._params.max_tokens))
        except (ArmError, GeneratorError) as error:
            return error
        return _Answered(found, answer, found.tokens + last.prompt_tokens + last.completion_tokens)

    def _pick(self, question: str, answers: Sequence[str]) -> tuple[int | None, int]:
        """Have the language model pick: the index of its answer, None for none, and the tokens it took."""
        first: dict[str, int] = {}
        for index, answer in enumerate(answers):
            first.setdefault(normalised(answer), index)
        first.pop("", None)
        shown = {str(number): index for number, index in enumerate(first.values(), start=1)}
        if len(shown) < 2:
            return None, 0
        listed = "\n".join(f"{number}. {' '.join(answers[at].split())}" for number, at in shown.items())
        messages: tuple[Message, ...] = (
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": ASK.format(question=question, answers=listed)},
        )
        tokens = 0
        for _ in range(PICK_ATTEMPTS):
            try:
                text, last = self._write(Prompt(messages, PICK_TOKENS))
            except GeneratorError:
                break
            tokens += last.prompt_tokens + last.completion_tokens
            number = re.search(r"\d+", text)
            if number and number[0] in shown:
                return shown[number[0]], tokens
            again = AGAIN.format(count=len(shown))
            messages += ({"role": "assistant", "content": text}, {"role": "user", "content": again})
        return None, tokens


def vote(answers: Sequence[str]) -> int:
    """Return the index of the answer that most others agree with, of several the first.

    Answers agree when they are the same after `normalised`; an empty one loses to any other.

    >>> vote(["London", "Paris", "paris."])
    1
    """
    every = [normalised(answer) for answer in answers]
    votes = Counter(every)
    return max(range(len(every)), key=lambda index: (every[index] != "", votes[every[index]]))


def _build(name: str, params: EnsembleParams, have: Resources, member: Members) -> Ensemble:
    return Ensemble(name, [member(other) for other in params.arms], params, have.write)


KIND = Kind(
    EnsembleParams, _build, members=lambda params: params.arms, steps=lambda params: float(len(params.arms))
)
