"""An audit of answers: a judge grades a random share of all answers of a log, rated or not.

    draw_answers --> AnswerSample --read_answers--> their texts --judge_answers--> AnswerAudit, in a receipt

The judge sees a question and its answer, and not which arm wrote it. What it says is the yardstick, so a
statement names it. The audit keeps all grades, without a text, so that `recompute` gives the same figures.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from math import nan
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import Field

from armwise.agent.proof import judged_answers, noninferiority
from armwise.agent.proof.documents import Finite, Name, Number, Stated, list_differences
from armwise.agent.proof.judged_answers import AnswerSample
from armwise.agent.proof.noninferiority import Ends, Sessions
from armwise.agent.reporting import write_dollars
from armwise.agent.turn.record import is_text
from armwise.arms.base import Progress
from armwise.arms.llm import (
    Chunk,
    GeneratorError,
    LateWriter,
    Prompt,
    base,
    catalog,
    judge,
    structured_output,
    writing,
)
from armwise.arms.llm.pricing import Bound, most_tokens
from armwise.arms.suggestions import did_you_mean
from armwise.feedback.errors import describe_error
from armwise.feedback.events import UNRECOVERED, Status
from armwise.feedback.log import Store
from armwise.feedback.log.second_answers import list_answers
from armwise.feedback.reward import RewardRule

if TYPE_CHECKING:
    from armwise.agent.config import AppConfig

AT_ONCE = 8
"""Answers that are judged at the same time."""

UNREAD = 3
"""Answers whose grade cannot be read after which an audit stops, if it has read none."""

LEAST_READABLE = 0.5
"""Share of the drawn answers whose texts the log must have."""

WRITTEN = 12
"""Tokens that a judge usually writes: its grade as JSON."""

OFFERED, FEW_RATED = 200, 0.3
"""Answers of the audit that a receipt offers, and the share of rated answers below which it does."""

Answer = tuple[str, str]
"""A question and its answer; without an answer, the arm failed."""


class AnswerAudit(Stated):
    """What a judge says of all answers, and all that is needed to compute it again from the log."""

    judge: Name
    asked: Annotated[int, Field(ge=1, le=1 << 53)] = Field(description="About so many answers were drawn.")
    seed: Number
    answers: Number = Field(description="Answers of the log that could have been drawn.")
    grades: list[tuple[Number, Annotated[float, Field(ge=0.0, le=1.0)] | None]] = Field(
        description="Row of each drawn answer and its grade; null: the judge gave none, or the text is gone."
    )
    spent: Finite = Field(description="Dollars of the judge.")
    quality: Ends = Field(description="Mean grade as served minus the mean grade of the reference.")


def estimate_usd(spec: catalog.LlmSpec, answer: Answer | None) -> tuple[float, float]:
    """Return about how many dollars it costs to judge an answer, and the most that it may cost."""
    if answer is None or not answer[1]:
        return 0.0, 0.0
    n, prices = most_tokens(answer[1]), catalog.find_prices(spec)
    bound = judge.grade_bound(judge.ANSWER, answer_tokens=n, word_budget=0, retries=1)
    read, written = (bound + Bound(written=2 * _room_to_think(spec))).tokens(answer[0])
    about = most_tokens(judge.ANSWER.system + judge.TAGS + judge.ANSWER.form + answer[0]) + n
    return prices.compute_usd(about, WRITTEN), prices.compute_most(read, written)


def _room_to_think(spec: catalog.LlmSpec) -> int:
    return structured_output.REASONING_TOKENS if base.HINTS & catalog.list_options(spec) else 0


def offer_audit(config: "AppConfig", sessions: Sessions, reference: str, model: str) -> str:
    """Return what an audit would cost, in a sentence; empty if it is not needed, or not possible."""
    rated = float((~np.isnan(sessions.rows.reward)).mean())
    if rated >= FEW_RATED or model not in config.models:
        return ""
    try:
        sample = judged_answers.draw_answers(sessions, reference, OFFERED, 0)
        answers, spec = read_answers(config, sessions, sample), config.models[model]
    except ValueError:
        return ""
    about = sum(estimate_usd(spec, one)[0] for one in answers)
    price = f"for about {write_dollars(about)}" if about else f"at an unknown cost, as {model} has no price"
    named = "" if model == writing.DEFAULT else f" --judge {model}"
    return (
        f"Only {rated:.0%} of the answers are rated. To speak of all answers, let a judge read {OFFERED} of "
        f"them, {price}: armwise prove --audit {OFFERED}{named}"
    )


def read_answers(config: "AppConfig", sessions: Sessions, sample: AnswerSample) -> list[Answer | None]:
    """Return the drawn answers with their texts; None: the text is gone, not complete, or no single text.

    Raises:
        ValueError: The log has the texts of too few.
        LogUnavailableError: Try again later.
    """
    positions = sessions.rows.seq[sample.rows].tolist()
    with closing(Store(config.database_url, config.reward.join, create=False)) as store:
        found = list_answers(store, positions)
    answers = list[Answer | None]()
    for seq in positions:
        question, execution = found.get(seq, ("", None))
        if execution is not None and execution.status in UNRECOVERED:
            answers.append((question, ""))
        elif execution is None or execution.status is Status.CANCELLED:
            answers.append(None)  # it is not complete
        else:
            text = execution.answer or ""
            answers.append((question, text) if question and text and is_text(text) else None)
    gone = answers.count(None)
    if gone > (1.0 - LEAST_READABLE) * len(answers):
        raise ValueError(
            f"--audit: the log has no text of {gone:,} of the {len(answers):,} drawn answers. Keep texts for "
            "longer with `privacy.keep_texts_days`, and audit while they are there"
        )
    return answers


def judge_answers(
    config: "AppConfig",
    sessions: Sessions,
    reference: str,
    rule: RewardRule,
    *,
    model: str,
    asked: int,
    budget: float,
    seed: int,
    on_progress: Progress,
) -> AnswerAudit:
    """Have a judge grade a random share of all answers.

    Args:
        config: The configuration, with the log and the judge.
        sessions: The explored decisions of the log.
        reference: The arm that what was served is compared with.
        rule: The rule of the ratings.
        model: Name of the language model that judges.
        asked: About how many answers to judge, at least 1.
        budget: Most dollars.
        seed: Seed of the draws.
        on_progress: Called with the number of judged answers.

    Raises:
        ValueError: The judge is unknown, costs more than the budget, or the texts are gone.
        GeneratorError: The judge failed, or gave no grade that can be read.
        NothingComparableError: The reference was hardly drawn.
        LogUnavailableError: Try again later.
    """
    if model not in config.models:
        raise ValueError(
            f"--judge {model}: no language model of that name{did_you_mean(model, config.models)}"
        )
    sample = judged_answers.draw_answers(sessions, reference, asked, seed)
    answers = read_answers(config, sessions, sample)
    grades, spent = _grade(config.models[model], model, answers, budget, on_progress)
    return AnswerAudit(
        judge=model,
        asked=asked,
        seed=seed,
        answers=len(sample.row),
        grades=list(zip(sample.rows.tolist(), grades, strict=True)),
        spent=spent,
        quality=_compare(sessions, rule, sample, grades),
    )


def _grade(
    spec: catalog.LlmSpec, model: str, answers: Sequence[Answer | None], budget: float, on_progress: Progress
) -> tuple[list[float | None], float]:
    """Return the grade of each answer, and the dollars of all."""
    write, spent, unread = LateWriter(spec), list[float](), list[str]()

    def note(prompt: Prompt) -> tuple[str, Chunk]:
        text, last = write(prompt)
        spent.append(last.usd)
        return text, last

    def grade(answer: Answer | None) -> float | None:
        if answer is None or not answer[1]:
            return None if answer is None else 0.0
        room = _room_to_think(spec)
        try:
            return judge.grade(note, judge.ANSWER, answer[0], (), answer[1], reasoning_tokens=room).grade
        except (judge.JudgeError, base.PromptRefusedError) as error:
            unread.append(str(error))
            return None

    grades, costs = list[float | None](), [estimate_usd(spec, one) for one in answers]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        while len(grades) < len(answers):  # a few at a time, so that an outage costs only these
            some = answers[len(grades) : len(grades) + AT_ONCE]
            about = sum(one for one, _ in costs[len(grades) :])
            most = sum(one for _, one in costs[len(grades) : len(grades) + AT_ONCE])
            if sum(spent) + max(about, most) > budget:
                raise ValueError(
                    f"--budget {budget:g}: {len(grades):,} of {len(answers):,} answers were judged for "
                    f"{write_dollars(sum(spent))}, and the others cost about {write_dollars(about)}. Raise "
                    "--budget, or lower --audit"
                )
            try:
                grades += pool.map(grade, some)
            except (GeneratorError, TimeoutError) as error:
                raise GeneratorError(f"the judge {model!r} failed: {describe_error(error)}") from error
            on_progress("answers", len(grades), len(answers))
            if len(unread) >= UNREAD and grades.count(None) == len(grades):
                raise GeneratorError(
                    f"the judge {model!r} gave no grade that can be read: {unread[-1]}. Name another --judge"
                )
    return grades, sum(spent)


def _compare(
    sessions: Sessions, rule: RewardRule, sample: AnswerSample, grades: Sequence[float | None]
) -> Ends:
    given = np.array([nan if one is None else one for one in grades])
    middle, errors = sum(rule.reward_range) / 2.0, noninferiority.share_error(sessions)
    return judged_answers.compare_grades(sample, given, sessions.rows.reward[sample.row], middle, errors)


def recompute(audit: AnswerAudit, sessions: Sessions, reference: str, rule: RewardRule) -> Iterator[str]:
    """Compute an audit again from the log and its grades; yield what differs, a sentence each."""
    sample = judged_answers.draw_answers(sessions, reference, audit.asked, audit.seed)
    rows, grades = [row for row, _ in audit.grades], [grade for _, grade in audit.grades]
    if rows != sample.rows.tolist():
        yield f"audit: seed {audit.seed} draws other answers than those that were judged"
        return
    found = {"answers": len(sample.row), "quality": _compare(sessions, rule, sample, grades)}
    yield from list_differences({name: getattr(audit, name) for name in found}, found)
