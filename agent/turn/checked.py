"""Check an answer before it is sent, and decide whether another language model answers in its place.

    the first model answers --check--> it is sent, or the second model answers

The check runs in a thread of its own: a command may take minutes, and neither the log nor the end of the
service may wait for it. What was said, and with which probability the answer was sent or replaced, is a stage
of the execution: the threshold of a score is fitted to these.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from armwise.arms.base import ArmError, Passage
from armwise.arms.llm import Chunk, GeneratorError, Prompt, writing
from armwise.arms.retrievers import AnswerCheck, CheckResult

AT_ONCE = 16
"""Checks of an arm that run at once in a process; more wait, within the time limit of the language model."""

SAID = 500
"""Most characters of what a check says that the log keeps."""

PromptModel = Callable[[str, Prompt], Coroutine[Any, Any, tuple[str, Chunk]]]
"""Name of a language model and prompt -> the answer, and its last chunk. Raises GeneratorError."""


@dataclass(frozen=True, slots=True)
class CheckedAnswering:
    """How the answers of an arm are checked, and who answers where they fail.

    Attributes:
        first: Name of the arm that answers first.
        then: Name of the arm that answers where the check fails.
        answering: How the answers of that arm are written.
        check: The check.
        threshold: Smallest score with which the first answer is sent.
        explore: Share of the questions where a coin decides, and not the score.
        places: Limits the checks of the arm that run at once, so that slow ones hold up no other arm.
    """

    first: str
    then: str
    answering: writing.Answering
    check: AnswerCheck
    threshold: float
    explore: float = 0.0
    places: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(AT_ONCE), repr=False, compare=False
    )

    def decide(self, score: float, u: float) -> tuple[bool, float]:
        """Return whether the second model answers, and the probability of that choice.

        Args:
            score: What the check said of the first answer.
            u: Uniform in [0, 1), from the id of the decision.

        >>> from armwise.agent.turn.checked import CheckedAnswering
        >>> checked = CheckedAnswering("small", "large", writing.Answering(), None, 0.5, explore=0.2)
        >>> checked.decide(0.5, 0.95), checked.decide(0.4, 0.85), checked.decide(0.5, 0.85)
        ((True, 0.1), (True, 0.9), (False, 0.9))
        """
        fails, other = score < self.threshold, self.explore / 2
        return (not fails, other) if u >= 1.0 - other else (fails, 1.0 - other)


@dataclass(frozen=True, slots=True)
class AnswerStage:
    """A language model that wrote an answer of a turn, and what was said of it, as the log keeps it.

    Attributes:
        arms: The arm whose settings applied.
        failed: The arm, if its model failed.
        llm: Name of the model.
        score: What the check said, in [0, 1]; None: the answer was not checked, or could not be.
        said: What the check said, or why the check or the model failed.
        threshold: Smallest score with which the answer is sent; None: there was no score.
        goes_on: Whether another model answers in its place.
        probability: Probability of that choice, 1 unless a coin may overrule the score.
    """

    arms: tuple[str, ...]
    llm: str
    failed: tuple[str, ...] = ()
    score: float | None = None
    said: str = ""
    threshold: float | None = None
    goes_on: bool = False
    probability: float = 1.0


async def check_texts(
    checked: CheckedAnswering,
    question: str,
    passages: Sequence[Passage],
    answers: Sequence[str],
    prompt_model: PromptModel,
) -> CheckResult:
    """Check the texts of an answer, and return the worst result.

    Args:
        checked: Whose check it is.
        question: The question.
        passages: Passages that the answer was written from.
        answers: The texts, one for each choice; at least one.
        prompt_model: Prompts a language model in the loop of the caller.

    Raises:
        ArmError, GeneratorError, TimeoutError: The answer could not be checked.
    """
    check, loop, pending, left = checked.check, asyncio.get_running_loop(), list[Future[Any]](), False

    def write(prompt: Prompt) -> tuple[str, Chunk]:
        if left or check.llm is None:
            raise GeneratorError("the caller no longer waits for this check")
        future = asyncio.run_coroutine_threadsafe(prompt_model(check.llm, prompt), loop)
        pending.append(future)
        if left:  # meanwhile, so that nobody else cancels it
            future.cancel()
        return future.result()

    def run() -> None:
        try:
            results = [check(question, passages, answer, write) for answer in answers if not left]
            done.set_result(min(results, key=lambda result: result.score))
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            done.set_exception(error)
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(checked.places.release)

    done = Future[CheckResult]()
    done.set_running_or_notify_cancel()  # from now on it cannot be cancelled, and is set by the thread
    await checked.places.acquire()  # until the check has ended, even if nobody waits for it any more
    try:
        threading.Thread(target=run, name="check", daemon=True).start()
    except RuntimeError as error:
        checked.places.release()
        raise ArmError(f"cannot start a thread for the check: {error}") from error
    try:
        result = await asyncio.wrap_future(done)
    except asyncio.CancelledError:
        left = True
        for future in pending:  # its thread would otherwise wait for a loop that may have ended
            future.cancel()
        raise
    return CheckResult(result.score, result.said[:SAID])
