"""Send questions with known answers to a live service, and post the scores as feedback.

    questions -> ask (auto) -> score -> POST feedback -> turns.jsonl    the policy learns meanwhile
    wait until learned -> summary.json, tables

A turn is written as soon as its feedback is acknowledged, so the file of an interrupted run has all turns
that the service learned from.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal, TextIO, TypeVar

import httpx
import orjson
from pydantic import BaseModel, ConfigDict, Field, SecretStr
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn

from armwise.agent.client import Answer, AnswerFailedError, AsyncClient, ClientError
from armwise.agent.config.warm_start import QUESTION_LINE
from armwise.agent.lab.simulation.questions import QuestionsError, SimulatedQuestion, load_questions, shuffle
from armwise.agent.lab.simulation.summary import RunSummary, SimulatedTurn, Traffic, summarise, tables
from armwise.arms import proxies
from armwise.feedback.answer_metrics import METRICS, recall_at_k
from armwise.feedback.reward import RewardError, RewardRule

POLL_S = 0.2

RESULTS = ("turns.jsonl", "summary.json")

Item = TypeVar("Item")


class SimulationError(Exception):
    """The run cannot start or continue; the message says why, and what to change."""


class Simulation(BaseModel):
    """Settings of a simulation."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str = Field(default="http://127.0.0.1:8000", description="Address of the service.")
    api_key: SecretStr | None = Field(default=None, description="API key, sent as a bearer token.")
    questions: Path = Field(description=f"JSON lines, plain or .gz, each {QUESTION_LINE}.")
    metrics: dict[str, Literal["em", "f1", "acc", "recall"]] = Field(
        min_length=1, description="declared=score, with the score em, f1, acc or recall; repeatable."
    )
    endpoint: Literal["retrieve", "chat"] = Field(
        default="chat",
        description="`chat`, or `retrieve`, which needs no language model and only supports recall.",
    )
    k: int = Field(default=4, ge=1, description="Passages to ask for, and the cut-off of recall.")
    limit: int | None = Field(default=None, ge=1, description="Ask this many of the shuffled questions.")
    seed: int = Field(default=0, ge=0, description="Seed of the order of the questions.")
    concurrency: int = Field(default=4, ge=1, description="Questions that are asked at once.")
    timeout_s: float = Field(default=120.0, gt=0, description="Seconds to wait for one answer.")
    learned_timeout_s: float = Field(
        default=60.0, ge=0, description="Seconds to wait until all feedback is learned; 0 does not wait."
    )
    output: Path = Field(
        default=Path("simulation"),
        description="Folder for figures and rows. Earlier ones are replaced.",
    )


async def simulate(
    settings: Simulation, console: Console, transport: httpx.AsyncBaseTransport | None = None
) -> RunSummary:
    """Run the traffic, write the results to `settings.output`, print them, and return the figures.

    Args:
        settings: Questions to ask and feedback to post.
        console: Where progress and tables go.
        transport: Transport of the requests; None: the network.

    Raises:
        SimulationError: The questions cannot be read, the service is unreachable
            or refuses a request, or a metric is incompatible with its score.
    """
    key = settings.api_key
    try:
        questions = shuffle(load_questions(settings.questions), settings.seed)[: settings.limit]
        limits = httpx.Limits(max_connections=settings.concurrency)
        over = proxies.async_client(limits) if transport is None else httpx.AsyncClient(transport=transport)
        async with over as http:
            secret = key.get_secret_value() if key else None
            client = AsyncClient(settings.url, secret, timeout_s=settings.timeout_s, http=http)
            return await _run(settings, questions, client, console)
    except (QuestionsError, ClientError, RewardError, httpx.InvalidURL) as error:
        raise SimulationError(str(error)) from error
    except OSError as error:
        raise SimulationError(f"cannot write the results to {settings.output}: {error}") from error


async def _run(
    settings: Simulation, questions: list[SimulatedQuestion], client: AsyncClient, console: Console
) -> RunSummary:
    arms = await client.arms()
    rule = (await client.policy()).reward
    _check(settings, rule, questions)
    settings.output.mkdir(parents=True, exist_ok=True)
    for name in RESULTS:
        (settings.output / name).unlink(missing_ok=True)
    run = _Run(settings, client, rule)
    started = time.perf_counter()
    await run.ask_policy(questions, console)
    duration_s = time.perf_counter() - started
    if not run.turns:
        raise SimulationError(
            f"none of {len(questions)} questions was answered; the last: {run.failures[-1]}"
        )
    learned = await run.wait_until_learned() if settings.learned_timeout_s else None
    traffic = Traffic(duration_s, len(run.failures), client.retries, learned)
    # the arms may have been replaced meanwhile
    arms = list(dict.fromkeys([*arms, *(name for turn in run.turns for name in turn.pmf)]))
    summary = summarise(run.turns, arms, traffic)
    (settings.output / "summary.json").write_bytes(orjson.dumps(summary, option=orjson.OPT_INDENT_2))
    _report(summary, settings, console)
    return summary


def _check(settings: Simulation, rule: RewardRule, questions: Sequence[SimulatedQuestion]) -> None:
    """Check metrics and questions before the first request. Raises SimulationError."""
    for name, score in settings.metrics.items():
        needed = "gold_ids" if score == "recall" else "answers"
        if rule.metric(name).type == "boolean" and score in ("f1", "recall"):
            raise SimulationError(f"metric {name!r} is boolean and {score} is a fraction; post em or acc")
        if settings.endpoint == "retrieve" and score != "recall":
            raise SimulationError(
                f"metric {name!r} is to get {score}, but retrieve gives no answer; use chat, or post recall"
            )
        if not any(getattr(question, needed) for question in questions):
            raise SimulationError(f"metric {name!r} is to get {score}, but no question has {needed}")


class _Run:
    """The state of a run; only one event loop accesses it."""

    def __init__(self, settings: Simulation, client: AsyncClient, rule: RewardRule) -> None:
        self.turns: list[SimulatedTurn] = []
        self.failures: list[str] = []
        self._log_seq = 0
        self._earned = 0.0
        self._scored = 0
        self._settings = settings
        self._client = client
        self._rule = rule

    async def ask_policy(self, questions: Sequence[SimulatedQuestion], console: Console) -> None:
        """Ask every question once, post feedback on each answer, and write each turn."""
        with self._open("turns.jsonl") as lines, _progress(console) as progress:
            task = progress.add_task("policy", total=len(questions), note="")

            async def turn(item: tuple[int, SimulatedQuestion]) -> None:
                position, question = item
                try:
                    answer = await self._ask(question)
                except AnswerFailedError as error:
                    self.failures.append(str(error))
                    row: object = {"position": position, "id": question.id, "error": str(error)}
                else:
                    row = await self._feed_back(position, question, answer)
                lines.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE).decode())
                note = f"mean reward {self._earned / self._scored:.3f}" if self._scored else ""
                progress.update(task, advance=1, note=note)

            await in_parallel(enumerate(questions), self._settings.concurrency, turn)

    async def wait_until_learned(self) -> bool:
        """Wait until the policy has learned all feedback; return False after the time limit."""
        deadline = time.monotonic() + self._settings.learned_timeout_s
        while (await self._client.policy()).applied_seq < self._log_seq:
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(POLL_S)
        return True

    def _open(self, name: str) -> TextIO:
        """Open a result file with line buffering."""
        return (self._settings.output / name).open("w", buffering=1, encoding="utf-8", newline="")

    async def _ask(self, question: SimulatedQuestion) -> Answer:
        if self._settings.endpoint == "retrieve":
            return await self._client.retrieve(question.question, self._settings.k)
        return await self._client.ask(question.question)

    async def _feed_back(self, position: int, question: SimulatedQuestion, answer: Answer) -> SimulatedTurn:
        scores, agent = self._scores(question, answer), answer.agent
        if scores:
            kept = await self._client.feedback(answer, scores)
            self._log_seq = max(self._log_seq, kept.log_seq)
        reward = self._reward(scores, answer)
        if reward is not None:
            self._earned += reward
            self._scored += 1
        turn = SimulatedTurn(
            position=position,
            id=question.id,
            group=question.group,
            decision_id=agent.decision_id,
            drawn=agent.arm_drawn,
            arm=agent.arm_served or agent.arm_drawn,
            propensity=agent.propensity,
            pmf=agent.pmf,
            metrics=scores,
            cost=answer.cost.model_dump(),
            reward=reward,
            version=agent.policy_version,
            latency_s=answer.latency_s,
        )
        self.turns.append(turn)
        return turn

    def _scores(self, question: SimulatedQuestion, answer: Answer) -> dict[str, float]:
        """Score the answer by each metric for which the question has a right answer."""
        scores = {}
        for name, score in self._settings.metrics.items():
            if score == "recall":
                if question.gold_ids:
                    scores[name] = recall_at_k(answer.passage_ids, question.gold_ids, self._settings.k)
            elif question.answers:
                scores[name] = METRICS[score](answer.text, question.answers)
        return scores

    def _reward(self, scores: dict[str, float], answer: Answer) -> float | None:
        """Return the reward by the declared rule and the reply's priced cost; None: no metric applies."""
        quality = self._rule.quality(scores) if scores else None
        return None if quality is None else self._rule.net(quality, answer.cost.total)


async def in_parallel(items: Iterable[Item], n: int, work: Callable[[Item], Awaitable[None]]) -> None:
    """Work on the items in order, at most `n` at once; the first error cancels the rest."""
    waiting = iter(items)

    async def worker() -> None:
        for item in waiting:
            await work(item)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(n):
                group.create_task(worker())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


def _progress(console: Console) -> Progress:
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"))
    return Progress(*columns, console=console)


def _report(summary: RunSummary, settings: Simulation, console: Console) -> None:
    for table in tables(summary):
        console.print(table)
    traffic = summary.traffic
    console.print(
        f"{summary.turns} answers in {traffic.duration_s:.1f} s, {summary.requests_per_s:.1f} per second, "
        f"latency p50 {summary.latency_p50_s * 1000:.1f} ms, p99 {summary.latency_p99_s * 1000:.1f} ms; "
        f"{traffic.failed} failed, {traffic.retries} retries; "
        f"policy version {summary.versions[0]} at the start, {summary.versions[1]} at the end"
    )
    if unscored := summary.turns - summary.scored:
        console.print(f"{unscored} not scored: no metric applied to them", style="yellow")
    if traffic.learned is False:
        console.print(f"not all feedback was learned within {settings.learned_timeout_s:g} s", style="yellow")
    console.print(f"written to {settings.output}")
