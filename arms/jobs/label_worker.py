"""A labelling job, and its worker: plain Python, in one process.

    questions --arms--> distinct rankings --language model--> distinct answers --measures--> outcomes

Threads search, prompt and grade ahead over all questions of a block, so that a language
model that batches has as many prompts as it may.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from arms.base import ArmError
from arms.corpus import Corpus
from arms.jobs.answer_measures import Grade, Measure
from arms.jobs.job import PoolJob, PoolWorker, digest_of_document
from arms.jobs.sweep import FAILED, Found
from arms.llm import Chunk, GeneratorError, Message, answer_to, prompts
from arms.portfolio import Outcomes
from arms.portfolio import outcomes as portfolio_outcomes
from arms.questions import Question
from arms.scoring import ScoringError, scorers

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class LabelJob(PoolJob):
    """Arms, questions, and the measures of the answers.

    Attributes:
        arms: Names of the arms to run; the other specs are only their members.
        form: Form of an answer.
        of_answers: Measures of answers.
        of_passages: Measures of passages.
        k: Passages that an arm returns and the language model reads.
        word_budget: Most words of them.
        max_tokens: Most tokens of an answer.
        at_once: Searches, and prompts beside them, that a worker has in flight.
    """

    arms: tuple[str, ...]
    form: prompts.Form
    of_answers: tuple[Measure[str], ...]
    of_passages: tuple[Measure[scorers.Ranking], ...] = ()
    k: int = 4
    word_budget: int = 400
    max_tokens: int = 128
    at_once: int = 64

    @property
    def writing(self) -> prompts.Writing:
        """How the answers are written."""
        return prompts.Writing(self.form, self.word_budget, self.max_tokens)

    @property
    def measures(self) -> tuple[Measure[Any], ...]:
        """All measures."""
        return (*self.of_answers, *self.of_passages)

    def check(self, questions: Sequence[Question], corpus: Corpus) -> None:
        """Refuse questions with supporting passages outside the corpus. Raises ScoringError."""
        if any(measure.needs == "gold_ids" for measure in self.measures):
            for question in questions:
                scorers.check_gold(question, corpus)

    def needed(self) -> frozenset[str]:
        """Return the names of the backbones of arms and measures."""
        return super().needed() | {measure.backbone for measure in self.measures if measure.backbone}

    def identity(self) -> dict[str, str]:
        """Return the identity of the outcomes. Raises ModelNotFoundError."""
        facts = {
            "asked": ", ".join(self.arms),
            "measures": ", ".join(measure.name for measure in self.measures),
            "k": str(self.k),
            **self.writing.facts,
            "words of prompts": digest_of_document(self.writing.words),
        }
        for measure in self.measures:
            facts |= measure.facts
        return {**self.facts(), **facts}


@dataclass(frozen=True, slots=True)
class LabelBlock:
    """The outcomes of some questions: question by question, arm by arm."""

    outcomes: tuple[portfolio_outcomes.Outcome, ...]

    @property
    def problem(self) -> str:
        """Why there is no answer at all; empty when there is one."""
        if any(outcome.answer is not None for outcome in self.outcomes):
            return ""
        first = self.outcomes[0]
        return f"question {first.question.id!r}: {first.error}"

    def pack(self) -> bytes:
        """Return a line for each outcome."""
        return b"".join(outcome.line() for outcome in self.outcomes)


@dataclass(slots=True)
class Missing:
    """A count of missing values.

    Attributes:
        count: How many.
        first: The first question and the reason; empty when nothing is missing.
    """

    count: int = 0
    first: str = ""

    def note(self, line: Mapping[str, str]) -> None:
        """Count a line of outcomes."""
        self.count += 1
        self.first = self.first or f"question {line['id']!r}: {line.get('error', 'no reason was given')}"


@dataclass(frozen=True, slots=True)
class LabelReport:
    """The result of a labelling job.

    Attributes:
        outcomes: All outcomes.
        resumed: Number of questions that were finished before this run.
        failed: Questions without an answer, by arm.
        unscored: Answers or rankings without a score, by measure.
    """

    outcomes: Outcomes
    resumed: int
    failed: Mapping[str, Missing]
    unscored: Mapping[str, Missing]


@dataclass(frozen=True, slots=True)
class _Reply:
    """The answer of the language model to a ranking.

    Attributes:
        prompt: Name of the prompt.
        answer: The answer; None if the model failed.
        tagged: Whether the answer was in the tag of the prompt; None for a prompt without.
        calls: The last chunk of each text.
        problem: Why there is no answer; empty otherwise.
    """

    prompt: str
    answer: str | None = None
    tagged: bool | None = None
    calls: tuple[Chunk, ...] = ()
    problem: str = ""


@dataclass(slots=True)
class _Graded:
    """Scores by name, and why some are missing."""

    scores: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A question in progress: the rankings, and futures for each distinct one."""

    question: Question
    found: Found
    replies: Sequence["Future[_Reply]"]
    graded: Sequence["Future[_Graded]"]


class LabelWorker(PoolWorker):
    """Labels blocks of a job; thread-safe."""

    def __init__(self, job: LabelJob) -> None:
        super().__init__(job, job.arms)
        self._job = job
        self._of_answers = [(measure, measure.make(self)) for measure in job.of_answers]
        self._of_passages = [(measure, measure.make(self)) for measure in job.of_passages]
        # Two pools: a search that prompts the model must not wait for a prompt that waits for it.
        self._searching = ThreadPoolExecutor(job.at_once, thread_name_prefix="search")
        self._asking = ThreadPoolExecutor(job.at_once, thread_name_prefix="ask")

    def block(self, number: int) -> LabelBlock:
        """Search with every arm for each question of a block, answer, and measure."""
        questions = self._job.questions_of(number)
        searches = [
            self._searching.submit(self.sweep.search, query, self._job.k) for query in self.queries(questions)
        ]
        asked = [
            self._asked(question, search.result())
            for question, search in zip(questions, searches, strict=True)
        ]
        answered = [(each, self._graded(each)) for each in asked]
        return LabelBlock(tuple(outcome for pair in answered for outcome in self._outcomes(*pair)))

    def _asked(self, question: Question, found: Found) -> _Asked:
        """Submit each distinct prompt of a question, and the measures of each distinct ranking."""
        replies: dict[str, Future[_Reply]] = {}
        of_rankings = []
        for ranking in found.rankings:
            messages = self._job.writing.prompt(question.text, ranking)
            shown = messages[0]["content"]
            if shown not in replies:
                replies[shown] = self._asking.submit(self._reply, messages, ranking)
            of_rankings.append(replies[shown])
        grade = partial(_grade, self._of_passages, question)
        graded = [self._asking.submit(grade, ranking) for ranking in found.rankings]
        return _Asked(question, found, of_rankings, graded)

    def _reply(self, messages: tuple[Message, ...], ranking: scorers.Ranking) -> _Reply:
        """Prompt the language model."""
        name = prompts.prompt_name(self._job.form, ranking, word_budget=self._job.word_budget)
        try:
            answer = answer_to(messages, self._job.writing, self.write)
        except GeneratorError as error:
            return _Reply(name, problem=str(error))
        return _Reply(name, answer.text, answer.tagged, answer.calls)

    def _graded(self, asked: _Asked) -> dict[str, "Future[_Graded]"]:
        """Submit the measures of the distinct answers to a question."""
        answers = dict.fromkeys(reply.result().answer for reply in asked.replies)
        grade = partial(_grade, self._of_answers, asked.question)
        return {answer: self._asking.submit(grade, answer) for answer in answers if answer is not None}

    def _outcomes(
        self, asked: _Asked, answers: Mapping[str, "Future[_Graded]"]
    ) -> list[portfolio_outcomes.Outcome]:
        """Return the outcome of each arm."""
        outcomes = []
        for column, arm in enumerate(self._job.arms):
            at = asked.found.which[column]
            if at == FAILED:
                outcomes.append(
                    portfolio_outcomes.Outcome(asked.question, arm, error=asked.found.problems[column])
                )
                continue
            reply, of_passages = asked.replies[at].result(), asked.graded[at].result()
            of_answer = _Graded() if reply.answer is None else answers[reply.answer].result()
            problems = [reply.problem, *of_answer.problems, *of_passages.problems]
            costs: dict[str, float] = {"steps": asked.found.steps[column].item()}
            if reply.answer is not None:
                costs |= _costs(reply.calls, asked.found.tokens[column].item())
            outcomes.append(
                portfolio_outcomes.Outcome(
                    asked.question,
                    arm,
                    tuple(passage.id for passage in asked.found.rankings[at]),
                    reply.answer,
                    {**of_answer.scores, **of_passages.scores},
                    costs,
                    reply.prompt,
                    reply.tagged,
                    "; ".join(filter(None, problems)),
                )
            )
        return outcomes


def _costs(calls: Sequence[Chunk], tokens: float) -> dict[str, float]:
    """Return the costs of an answer; tokens that an arm spent count as read, as in the service.

    Seconds are left out: a block that is repeated after a kill must have the same bytes.
    """
    costs: dict[str, float] = {
        "llm_calls": len(calls),
        "prompt_tokens": sum(call.prompt_tokens for call in calls) + int(tokens),
        "completion_tokens": sum(call.completion_tokens for call in calls),
    }
    usd = sum(call.usd for call in calls)
    return {**costs, "usd": usd} if usd else costs


def _grade(measures: Sequence[tuple[Measure[T], Grade[T]]], question: Question, what: T) -> _Graded:
    """Score an answer or a ranking by all measures that apply. Raises ScoringError outside of [0, 1]."""
    graded = _Graded()
    for measure, grade in measures:
        if not measure.applies(question):
            continue
        try:
            scores = grade(question, what)
        except (ArmError, GeneratorError) as error:
            graded.problems.append(f"{measure.name}: {error}")
            continue
        for name, value in scores.items():
            if not 0.0 <= value <= 1.0:
                raise ScoringError(f"{name} of question {question.id!r} is {value}; scores are in [0, 1]")
        graded.scores |= scores
    return graded
