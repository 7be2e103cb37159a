"""Label every question with the answer from every arm's passages.

questions x arms -> worker pool -> <output>.blocks -> <output>/outcomes.jsonl
                                   a file a block              manifest.json   their identity

    questions --arms--> distinct rankings --language model--> distinct answers --measures--> outcomes

Threads of a worker search, prompt and grade all questions of a block concurrently, so that a language model
that batches gets full batches.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import orjson

from armwise.arms.base import ArmError, Progress
from armwise.arms.corpus import Corpus
from armwise.arms.indexes import build_once
from armwise.arms.lab.jobs.answer_measures import Grade, Measure
from armwise.arms.lab.jobs.checkpoint import BlockFolder, open_blocks, refuse_other_output
from armwise.arms.lab.jobs.job import (
    FAILED,
    PoolJob,
    PoolWorker,
    Rankings,
    digest_of_document,
    language_model,
)
from armwise.arms.lab.jobs.worker_pool import list_unfinished, worker_pool
from armwise.arms.lab.portfolio import Outcomes, outcomes, read_outcomes
from armwise.arms.lab.portfolio import outcomes as portfolio_outcomes
from armwise.arms.lab.scoring import ScoringError, scorers
from armwise.arms.llm import (
    Chunk,
    GeneratorError,
    LateWriter,
    LlmSpec,
    Message,
    WritingSpec,
    answer_to,
    prompts,
)
from armwise.arms.llm import writing as llm_writing
from armwise.arms.questions import Question

T = TypeVar("T")

_WRITING = ("word_budget", "max_tokens", "temperature", "reasoning")


@dataclass(frozen=True, kw_only=True)
class LabelJob(PoolJob):
    """Arms, questions, and the measures of the answers.

    Attributes:
        arms: Names of the arms to run; other specs serve only as members of these.
        form: Form of an answer.
        of_answers: Measures of answers.
        of_passages: Measures of passages.
        k: Number of passages that an arm returns and the language model reads.
        word_budget: Largest number of words of passages.
        max_tokens: Largest number of tokens of an answer.
        at_once: Concurrent searches of a worker, and concurrent prompts.
        llms: Further language models by name, for arms with `answering.llm`.
        templates: Prompts by name, for arms with `answering.prompt`.
    """

    arms: tuple[str, ...]
    form: prompts.Form
    of_answers: tuple[Measure[str], ...]
    of_passages: tuple[Measure[scorers.Ranking], ...] = ()
    k: int = 4
    word_budget: int = 400
    max_tokens: int = 128
    at_once: int = 64
    llms: Mapping[str, LlmSpec] = field(default_factory=dict)
    templates: Mapping[str, prompts.Template] = field(default_factory=dict)

    @property
    def writing(self) -> prompts.Writing:
        """Settings of the answers of arms without `answering`."""
        return prompts.Writing(self.form, self.word_budget, self.max_tokens)

    def find_writing(self, arm: str) -> tuple[str, int, prompts.Writing]:
        """Return the language model of an arm, the number of passages it reads, and its settings."""
        answering = self.specs[arm].answering
        model, k = answering.llm or llm_writing.DEFAULT, answering.passages or self.k
        if answering == WritingSpec(llm=answering.llm, passages=answering.passages):
            return model, k, self.writing
        named = {
            name: value for name, value in answering.model_dump(exclude_none=True).items() if name in _WRITING
        }
        writing = replace(prompts.PipelineWriting(self.form, self.word_budget, self.max_tokens), **named)
        if answering.prompt in set(prompts.Form):
            writing = replace(writing, form=prompts.Form(answering.prompt))
        elif answering.prompt is not None:
            writing = replace(writing, form=prompts.Form.DIRECT, template=self.templates[answering.prompt])
        return model, k, writing

    @property
    def measures(self) -> tuple[Measure[Any], ...]:
        """All measures."""
        return (*self.of_answers, *self.of_passages)

    def check(self, questions: Sequence[Question], corpus: Corpus) -> None:
        """Check that the supporting passages of questions are in the corpus. Raises ScoringError."""
        if any(measure.needs == "gold_ids" for measure in self.measures):
            for question in questions:
                scorers.check_gold(question, corpus)

    def list_backbones(self) -> frozenset[str]:
        """Return the names of the backbones of arms and measures."""
        return super().list_backbones() | {measure.backbone for measure in self.measures if measure.backbone}

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
        for arm in self.arms:
            if self.specs[arm].answering != WritingSpec():
                model, k, writing = self.find_writing(arm)
                spec = self.llms.get(model, self.llm)
                facts[f"answers of {arm}"] = digest_of_document([language_model(spec), k, asdict(writing)])
        return {**self.facts(), **facts}


@dataclass(frozen=True, slots=True)
class LabelBlock:
    """The outcomes of a block: question by question, arm by arm."""

    outcomes: tuple[portfolio_outcomes.Outcome, ...]

    @property
    def problem(self) -> str:
        """Why all answers are missing; empty: at least one is there."""
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
        count: Number of missing values.
        first: The first question and the reason; empty if the count is 0.
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
        answer: The answer; None: the model failed.
        tagged: Whether the answer was in the tag that the prompt asks for; None: the prompt has no tag.
        calls: The last chunk of each call of the model, with its tokens and price.
        problem: Why the answer is missing, if it is.
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
class _AskedQuestion:
    """A question in progress: its rankings, and futures by arm; arms with equal work share a future."""

    question: Question
    found: Rankings
    replies: Mapping[str, "Future[_Reply]"]
    graded: Mapping[str, "Future[_Graded]"]


class LabelWorker(PoolWorker):
    """Labels blocks of a job; thread-safe."""

    def __init__(self, job: LabelJob) -> None:
        super().__init__(job, job.arms)
        self._job = job
        self._of_answers = [(measure, measure.make(self)) for measure in job.of_answers]
        self._of_passages = [(measure, measure.make(self)) for measure in job.of_passages]
        # Two pools against a deadlock: a search may prompt the model, and a prompt waits for its search.
        self._searching = ThreadPoolExecutor(job.at_once, thread_name_prefix="search")
        self._asking = ThreadPoolExecutor(job.at_once, thread_name_prefix="ask")
        self._writers = {
            llm_writing.DEFAULT: self.write,
            **{name: LateWriter(spec) for name, spec in job.llms.items()},
        }
        self._writing = {arm: job.find_writing(arm) for arm in job.arms}
        self._k = max(k for _, k, _ in self._writing.values())

    def block(self, number: int) -> LabelBlock:
        """Search with every arm for each question of a block, answer, and grade."""
        questions = self._job.list_questions(number)
        searches = [
            self._searching.submit(self.sweep.search, query, self._k) for query in self.queries(questions)
        ]
        submitted = [
            self._submit_question(question, search.result())
            for question, search in zip(questions, searches, strict=True)
        ]
        answered = [(each, self._submit_grades(each)) for each in submitted]
        return LabelBlock(tuple(outcome for pair in answered for outcome in self._outcomes(*pair)))

    def _submit_question(self, question: Question, results: Rankings) -> _AskedQuestion:
        """Submit each distinct prompt of a question, and the measures of each distinct ranking."""
        replies: dict[tuple[str, prompts.Writing, str], Future[_Reply]] = {}
        graded: dict[tuple[int, int], Future[_Graded]] = {}
        of_arms: dict[str, Future[_Reply]] = {}
        of_rankings: dict[str, Future[_Graded]] = {}
        for arm, at in zip(self._job.arms, results.which, strict=True):
            if at == FAILED:
                continue
            model, k, writing = self._writing[arm]
            ranking = results.rankings[at][:k]
            messages = writing.prompt(question.text, ranking)
            key = model, writing, messages[0]["content"]
            if key not in replies:
                replies[key] = self._asking.submit(self._reply, model, writing, messages, ranking)
            of_arms[arm] = replies[key]
            if (at, k) not in graded:
                graded[at, k] = self._asking.submit(_grade, self._of_passages, question, ranking)
            of_rankings[arm] = graded[at, k]
        return _AskedQuestion(question, results, of_arms, of_rankings)

    def _reply(
        self,
        model: str,
        writing: prompts.Writing,
        messages: tuple[Message, ...],
        ranking: scorers.Ranking,
    ) -> _Reply:
        """Prompt a language model."""
        name = prompts.prompt_name(writing.form, ranking, word_budget=writing.word_budget)
        try:
            answer = answer_to(messages, writing, self._writers[model])
        except GeneratorError as error:
            return _Reply(name, problem=str(error))
        return _Reply(name, answer.text, answer.tagged, answer.calls)

    def _submit_grades(self, submitted: _AskedQuestion) -> dict[str, "Future[_Graded]"]:
        """Submit the measures of the distinct answers to a question."""
        answers = dict.fromkeys(reply.result().answer for reply in submitted.replies.values())
        grade = partial(_grade, self._of_answers, submitted.question)
        return {answer: self._asking.submit(grade, answer) for answer in answers if answer is not None}

    def _outcomes(
        self, submitted: _AskedQuestion, answers: Mapping[str, "Future[_Graded]"]
    ) -> list[portfolio_outcomes.Outcome]:
        """Return the outcome of each arm."""
        outcomes = []
        for column, arm in enumerate(self._job.arms):
            at = submitted.found.which[column]
            if at == FAILED:
                outcomes.append(
                    portfolio_outcomes.Outcome(
                        submitted.question, arm, error=submitted.found.problems[column]
                    )
                )
                continue
            reply, of_passages = submitted.replies[arm].result(), submitted.graded[arm].result()
            of_answer = _Graded() if reply.answer is None else answers[reply.answer].result()
            problems = [reply.problem, *of_answer.problems, *of_passages.problems]
            results = submitted.found
            costs: dict[str, float] = {"steps": results.steps[column].item()}
            if reply.answer is not None:
                costs |= _costs(reply.calls, results.tokens[column].item())
            searched = results.usd[column].item()
            if usd := searched + sum(call.usd for call in reply.calls):
                costs["usd"] = usd
            if searched:
                costs["search_usd"] = searched
            outcomes.append(
                portfolio_outcomes.Outcome(
                    submitted.question,
                    arm,
                    tuple(passage.id for passage in submitted.found.rankings[at][: self._writing[arm][1]]),
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
    """Return the tokens and calls of an answer; an arm's tokens count as prompt tokens, as in the service.

    Seconds are left out: a block that is repeated after a kill must have the same bytes.
    """
    return {
        "llm_calls": len(calls),
        "prompt_tokens": sum(call.prompt_tokens for call in calls) + int(tokens),
        "completion_tokens": sum(call.completion_tokens for call in calls),
    }


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
                raise ScoringError(f"{name} of question {question.id!r} is {value}; it must be in [0, 1]")
        graded.scores |= scores
    return graded


BLOCKS_AT_ONCE = 2
"""Blocks per worker: the next block keeps the model busy while the last answers of a block are written."""


def label(
    job: LabelJob, output: Path, *, workers: int | None = None, progress: Progress | None = None
) -> LabelReport:
    """Label all questions with the outcomes of all arms; a finished output is read instead.

    Args:
        job: The job.
        output: The folder of the outcomes; until all blocks are finished they are in `<output>.blocks`.
        workers: Processes, see `armwise.arms.lab.jobs.worker_pool.worker_pool`.
        progress: Progress callback.

    Raises:
        ScoringError: A question lacks what the measures need, or a measure leaves [0, 1].
        JobError: The output holds other outcomes, no processor is free, many questions in a row
            failed, or workers failed; finished blocks are kept.
        ArmSpecError: The spec of an arm is invalid.
        ModelNotFoundError: A model cannot be found.
    """
    on_progress = progress or (lambda *_: None)
    scorers.check_questions(job.questions, job, job.corpus)
    job = job.validate()
    identity = job.identity()
    if output.exists():
        refuse_other_output(output, identity)
        return _report(job, output, len(job.questions))
    with open_blocks(output, identity) as blocks:
        resumed = sum(len(job.list_questions(number)) for number in blocks.list_finished())
        job.prepare(on_progress)
        if list_unfinished(job, blocks):
            with worker_pool(LabelWorker, job, workers, BLOCKS_AT_ONCE) as pool:
                pool.finish(blocks, on_progress, "asking questions")
        build_once.publish(output, identity, partial(_write, job, blocks))
        blocks.delete()
    return _report(job, output, resumed)


def _write(job: LabelJob, blocks: BlockFolder, folder: Path) -> None:
    with (folder / outcomes.FILE).open("wb") as file:
        file.writelines(blocks.read(number) for number in range(job.n_blocks))


def _report(job: LabelJob, output: Path, resumed: int) -> LabelReport:
    """Count missing answers by arm and missing scores by measure."""
    questions = {question.id: question for question in job.questions}
    due: list[tuple[Measure[Any], str]] = [
        *((measure, "answer") for measure in job.of_answers),
        *((measure, "passages") for measure in job.of_passages),
    ]
    failed = {arm: Missing() for arm in job.arms}
    unscored = {measure.name: Missing() for measure, _ in due}
    for line in map(orjson.loads, (output / outcomes.FILE).read_bytes().splitlines()):
        if "answer" not in line:
            failed[line["arm"]].note(line)
        for measure, of in due:
            if of in line and measure.applies(questions[line["id"]]) and measure.scores[0] not in line:
                unscored[measure.name].note(line)
    return LabelReport(read_outcomes(output, job.questions), resumed, failed, unscored)
