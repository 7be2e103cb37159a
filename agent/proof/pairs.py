"""Get pairs: have two arms answer the same requests, and a judge compare the answers blindly.

    read_requests(file) --> RequestFile --collect_pairs--> finished pairs, each in a file --> StoredPair
    read_logged_pairs(log)  the pairs that `observations.shadow` has made ------------------> StoredPair

A finished pair is written before another begins in its place, so a run that stops goes on where it stopped:
what is in a file is not asked again. The files are in the home, as they hold questions and answers.

Before a pair is asked, the most that it may cost is set aside: what was spent and what is set aside never
exceed the budget. That takes the prices of the configuration, as everywhere.
"""

import asyncio
import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from math import isnan
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from pydantic import Field

from armwise.agent.api import question as asked
from armwise.agent.hosts.single_process import open_backends
from armwise.agent.policies import FeatureSpec, sampling
from armwise.agent.policies.base import Uniform
from armwise.agent.proof.documents import Stated
from armwise.agent.proof.judged_pairs import Word
from armwise.agent.proof.verdict import PairDraws, PairOutcome, StoredPair, decide_now
from armwise.agent.serving import arm_infos
from armwise.agent.serving.replica import name_models
from armwise.agent.turn import (
    AnswerWriter,
    ArmHealth,
    Ask,
    Decider,
    LanguageModel,
    RequestDocument,
    Searcher,
    Serving,
    TurnLoop,
    is_text,
)
from armwise.agent.turn.price import limit_tokens
from armwise.agent.turn.record import Unlogged
from armwise.agent.turn.steps.checks import CheckStep
from armwise.agent.turn.steps.second_answers import answer_with, leave_room_to_think, merge_passages
from armwise.arms.async_bridge import Blocking
from armwise.arms.base import ArmError, Passage, Progress
from armwise.arms.lab.jobs.checkpoint import BlockFolder, open_blocks
from armwise.arms.lab.portfolio.outcomes import Outcome
from armwise.arms.llm import Chunk, GeneratorError, Prompt, Request, base, blocking_writer, judge, protocols
from armwise.arms.llm import catalog as llm_catalog
from armwise.arms.questions import Question
from armwise.arms.retrievers import ArmGraph
from armwise.feedback.answer_metrics import words
from armwise.feedback.errors import describe_error
from armwise.feedback.events import Context, Decision, Execution, Status
from armwise.feedback.jsonl import ExchangeError, read_lines
from armwise.feedback.log import Store
from armwise.feedback.log.second_answers import SecondAnswer, list_second_answers

if TYPE_CHECKING:
    from armwise.agent.config import AppConfig

AT_ONCE = 4
"""Pairs that are asked at the same time."""

BOTH_ORDERS = 0.25
"""Share of the pairs that the judge compares in both orders."""

MOST_CLASSES = 50
"""Most classes of requests: each needs pairs of its own."""

EVERYTHING = "all"
"""Name of the class of all requests."""

UNNAMED = "(none)"
"""Name of the class of requests without the field that names classes."""

WRAPPERS = ("body", "params", "request")
"""Keys under which batch files and logs keep the body of a request."""

UNREAD = 3
"""Pairs whose verdict cannot be read after which a run stops, if it has read none."""

GO_ON = "Try the arms with `armwise ask`, then repeat the command: it goes on where it stopped."
"""What to do once a run has stopped."""


class PairsStoppedError(GeneratorError):
    """Nothing came of the last pairs; the message says why."""


@dataclass(frozen=True, slots=True)
class RequestFile:
    """The requests of a file by class, in the order of the file.

    Attributes:
        digest: SHA-256 of what was read of them, in hexadecimal.
        classes: Names of the classes, the most frequent first.
        asks: Requests of each class.
        left_out: Number of lines that are not asked, by reason.
    """

    digest: str
    classes: tuple[str, ...]
    asks: tuple[tuple[Ask, ...], ...]
    left_out: Mapping[str, int]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of requests of each class."""
        return tuple(map(len, self.asks))


def read_requests(path: Path, by: str, most_chars: int, each: str = "", seed: int = 0) -> RequestFile:
    """Read requests: bodies of OpenAI's chat or Anthropic's messages, or `{"query": ...}`, a line each.

    Requests of one conversation are alike. So that long ones do not count more than others, name the field of
    their conversation: one request of each is drawn.

    Args:
        path: JSON lines, plain or .gz.
        by: Field that names the class of a request, such as `metadata.task`, or `TOPICS`; empty: all are one
            class.
        most_chars: Most characters of a question.
        each: Field that names the conversation of a request; empty: each request is read.
        seed: Seed that draws one request of each conversation.

    Raises:
        ExchangeError: The file cannot be read, or a line is no request.
        ValueError: There is no request, or there are too many classes.
    """
    digest, found = hashlib.sha256(f"{by}\n{each}\n".encode()), defaultdict[str, list[Ask]](list)
    left_out, drawn = Counter[str](), dict[str, tuple[float, str, Ask]]()
    for number, line in read_lines(path):
        digest.update(line.strip() + b"\n")
        try:
            document = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise ExchangeError(f"{path}, line {number}: no JSON: {error}") from None
        ask = read_ask(document, f"request-{number}", most_chars)
        if isinstance(ask, str):
            left_out[ask] += 1
            continue
        name = name_class(document, each) if each else UNNAMED
        conversation = str(number) if name == UNNAMED else f"in {name}"
        of_class = name_class(document, by) if by else EVERYTHING
        one = sampling.uniform_from(ask.decision_id, f"{seed}/each"), of_class, ask
        left_out["share a conversation with a request that is drawn"] += conversation in drawn
        drawn[conversation] = min(one, drawn.get(conversation, one), key=itemgetter(0))
    for _, of_class, ask in drawn.values():
        found[of_class].append(ask)
    if not found:
        why = "; ".join(f"{n:,} lines {why}" for why, n in left_out.items())
        raise ValueError(f"{path}: no request was found; {why or 'the file is empty'}")
    if len(found) > MOST_CLASSES:
        raise ValueError(f"--by {by}: {len(found):,} classes, but at most {MOST_CLASSES} are compared")
    names = sorted(found, key=lambda name: (-len(found[name]), name))
    return RequestFile(
        digest.hexdigest(), tuple(names), tuple(tuple(found[name]) for name in names), +left_out
    )


def read_ask(document: Any, name: str, most_chars: int) -> Ask | str:
    """Return the request of a line, or why it is not asked."""
    if not isinstance(document, Mapping):
        return "are no JSON objects"
    body = next((document[key] for key in WRAPPERS if isinstance(document.get(key), Mapping)), document)
    query = next((body[key] for key in ("query", "question") if isinstance(body.get(key), str)), None)
    if query is not None and "messages" not in body:
        body = {"messages": [{"role": "user", "content": query}]}
    protocol: protocols.ProtocolName = "messages" if "system" in body else "chat"
    request = Request(protocol, dict(body))
    messages = protocols.chat.read_messages(request.chat)
    options = protocols.chat.read_options(request.chat)
    question = asked.read_question([(one["role"], one["content"]) for one in messages], most_chars).text
    if not question.strip():
        return "have no question"
    if options.get("tools"):
        return "offer tools"
    if len(question) > most_chars:
        return f"have a question of more than {most_chars:,} characters"
    if messages[-1]["role"] != "user":
        messages = messages[: max(at for at, one in enumerate(messages) if one["role"] == "user") + 1]
    options = {key: value for key, value in options.items() if key != "n"}
    limit = protocols.PROTOCOLS[protocol].read_limit(request.body)
    return Ask(name, question, messages, RequestDocument(max_tokens=limit, options=options))


def name_class(document: Mapping[str, Any], by: str) -> str:
    """Return the value of a field of a request, such as `metadata.task`, as a text.

    >>> name_class({"body": {"metadata": {"task": "code"}}}, "metadata.task"), name_class({}, "task")
    ('code', '(none)')
    """
    for start in (document, *(document.get(key) for key in WRAPPERS)):
        value: Any = start
        for key in by.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(value, str | int | float | bool):
            return str(value)[:100]
    return UNNAMED


async def open_turns(config: "AppConfig") -> TurnLoop:
    """Return what answers with the arms of a configuration, without a service and without logging.

    Raises:
        ArmError: An arm cannot be built.
        GeneratorError: A language model cannot be loaded.
    """
    backends = await asyncio.to_thread(open_backends, config)
    await backends.embedders.load(backends.embedders.loading)
    models, health, salt = name_models(config, backends.generators), ArmHealth(), "pairs"
    steps = (CheckStep(salt),)
    return TurnLoop(
        arms=arm_infos(config),
        decider=Decider(Serving(Uniform(), 0), steps, salt, config.reward.wait_s, health=health),
        searcher=Searcher(
            run=backends.arms.search,
            embed=backends.embedders.embed,
            health=health,
            models=models,
            find_passages=backends.arms.passages,
            restricted=await backends.arms.is_restricted(),
            timeout_s=config.limits.arm_timeout_s,
        ),
        writer=AnswerWriter(
            models, health, templates=config.templates, steps=steps, timeout_s=config.limits.llm_timeout_s
        ),
        log=Unlogged(),  # type: ignore[arg-type]  # only decisions that are made already are carried out
        features=FeatureSpec(),
    )


class AskedPair(Stated):
    """A pair with its texts, as it is written to its file."""

    pair: StoredPair
    question: str
    answers: tuple[str, str] = Field(description="The challenger's and the reference's; empty: it failed.")
    costs: tuple[dict[str, float], dict[str, float]] = Field(
        description="What both cost, by the fields of `Cost`."
    )

    @property
    def is_whole(self) -> bool:
        """Whether both arms answered."""
        return self.pair.outcome in (PairOutcome.JUDGED, PairOutcome.EQUAL, PairOutcome.UNREADABLE)

    def list_outcomes(self, arms: tuple[str, str], dataset: str) -> list[Outcome]:
        """Return the outcomes of both arms, as `armwise lab train` reads them; empty without a verdict.

        As in a battle, the better arm has the score 1 and the other one 0, or both have 0.5.

        Args:
            arms: Names of challenger and reference.
            dataset: Name of the class of the request.
        """
        pair = self.pair
        value = pair.value if pair.label is None else pair.label
        if isnan(value):
            return []
        question = Question(f"{pair.group}/{pair.member}", self.question, dataset=dataset)
        outcomes = list[Outcome]()
        for arm, costs, sign, failure in zip(
            arms,
            self.costs,
            (1.0, -1.0),
            (PairOutcome.CHALLENGER_FAILED, PairOutcome.REFERENCE_FAILED),
            strict=True,
        ):
            failed = pair.outcome in (failure, PairOutcome.BOTH_FAILED)
            scores = {"judge": 0.0 if failed else 0.5 + sign * value / 2.0}
            outcomes.append(
                Outcome(question, arm, scores=scores, costs=costs, error="no answer" if failed else "")
            )
        return outcomes


def toss(seed: int, use: str, group: int, member: int) -> float:
    """Return a number in [0, 1) for a use of a request, such as the order in which its answers are read."""
    return sampling.uniform_from(f"{group}/{member}", f"{seed}/{use}")


@dataclass(slots=True)
class PairAsker:
    """Asks both arms and the judge.

    Attributes:
        turns: What answers with an arm.
        challenger: The arm that may take over.
        reference: The arm that it is compared with.
        judge: Name of the language model that judges.
        seed: Seed of the orders in which the judge reads the answers.
        redact: Redacts the texts that are written to a file.
        unread: Why the last verdict that could not be read could not be.
    """

    turns: TurnLoop
    challenger: str
    reference: str
    judge: str
    seed: int
    redact: Callable[[str], str] = str
    unread: str = ""
    _bridge: Blocking = field(init=False)

    def __post_init__(self) -> None:
        self._bridge = Blocking(self.turns.writer.timeout_s)

    @property
    def _model(self) -> LanguageModel:
        return self.turns.writer.models[self.judge]

    def list_orders(self, group: int, member: int) -> tuple[bool, ...]:
        """Return for each verdict of a pair whether the judge reads the challenger first."""
        first = toss(self.seed, "order", group, member) < 0.5
        return (first, not first) if toss(self.seed, "both", group, member) < BOTH_ORDERS else (first,)

    def compute_most_usd(self, ask: Ask, group: int, member: int) -> float:
        """Return the most dollars that a pair may cost."""
        arms = [self._decide(ask, arm) for arm in (self.challenger, self.reference)]
        answers = sum(self.turns.bound_cost(ask, one, one.drawn).usd for one in arms)
        written = sum(limit_tokens(ask, self.turns.arms[one.drawn].answering) for one in arms)
        model = self._model
        bound = judge.prefer_bound(answer_tokens=written, reasoning_tokens=leave_room_to_think(model))
        read, wrote = bound.tokens(ask.question)
        verdict = model.prices.compute_most(read, wrote)
        return answers + len(self.list_orders(group, member)) * verdict

    def _decide(self, ask: Ask, arm: str) -> Decision:
        """Return the decision for an arm, which is carried out and not logged."""
        now = self.turns.decider.clock()
        context = Context(ask.question)
        return Decision(
            ask.decision_id, context, (arm,), (1.0,), arm, "pairs", 0, decided_at=now, deadline=now
        )

    async def ask(self, ask: Ask, group: int, member: int) -> AskedPair:
        """Have both arms answer, and their answers compared."""
        arms = self.challenger, self.reference
        done = await asyncio.gather(
            *(answer_with(self.turns, ask, self._decide(ask, arm), arm) for arm in arms)
        )
        (mine, _), (other, _) = done
        usd = mine.cost.usd, other.cost.usd, 0.0
        seconds = mine.cost.retrieval_s + mine.cost.llm_s, other.cost.retrieval_s + other.cost.llm_s
        texts = _read_answer(mine), _read_answer(other)
        outcome = _compare_texts(*texts)
        pair = StoredPair(group=group, member=member, outcome=outcome, usd=usd, seconds=seconds)
        if outcome is PairOutcome.JUDGED:
            pair = await self._judge(pair, ask, texts, [found for _, found in done])
        return AskedPair(
            pair=pair,
            question=self.redact(ask.question),
            answers=(self.redact(texts[0]), self.redact(texts[1])),
            costs=(asdict(mine.cost), asdict(other.cost)),
        )

    async def _judge(
        self, pair: StoredPair, ask: Ask, texts: tuple[str, str], passages: Sequence[Sequence[Passage]]
    ) -> StoredPair:
        """Return a pair with the verdicts of the judge, who does not know whose answers they are."""
        spent, verdicts = list[Chunk](), dict[str, float]()
        write = blocking_writer(self._bridge, self._model.generator)

        def note(prompt: Prompt) -> tuple[str, Chunk]:
            text, last = write(prompt)
            spent.append(last)
            return text, last

        for is_first in self.list_orders(pair.group, pair.member):
            order = (0, 1) if is_first else (1, 0)
            try:
                found = await asyncio.to_thread(
                    judge.prefer,
                    note,
                    ask.question,
                    merge_passages(passages[order[0]], passages[order[1]]),
                    texts[order[0]],
                    texts[order[1]],
                    reasoning_tokens=leave_room_to_think(self._model),
                )
            except (judge.JudgeError, base.PromptRefusedError) as error:
                self.unread = str(error)
                continue
            verdicts["shown_first" if is_first else "shown_second"] = (
                found.grade if is_first else -found.grade
            )
        changed: dict[str, Any] = {"usd": (*pair.usd[:2], sum(chunk.usd for chunk in spent)), **verdicts}
        if not verdicts:
            changed["outcome"] = PairOutcome.UNREADABLE
        return pair.model_copy(update=changed)


def _read_answer(execution: Execution) -> str:
    """Return the text of an answer; empty: the arm failed, or it is no single text."""
    answer = execution.answer
    return answer if execution.status is Status.OK and answer and is_text(answer) else ""


def _compare_texts(mine: str, other: str) -> PairOutcome:
    """Return how a pair ends without a judge; `JUDGED` if it takes one."""
    if not mine or not other:
        failed = PairOutcome.REFERENCE_FAILED if mine else PairOutcome.CHALLENGER_FAILED
        return failed if mine or other else PairOutcome.BOTH_FAILED
    return PairOutcome.EQUAL if words(mine) == words(other) else PairOutcome.JUDGED


@dataclass(frozen=True, slots=True)
class Collected:
    """What was collected.

    Attributes:
        draws: Which pairs count, and in which order.
        asked: The pairs with their texts, in the order of the draws.
        resumed: Number of pairs that were there before.
        beyond_budget: Whether no further pair was asked because of the budget.
    """

    draws: PairDraws
    asked: Sequence[AskedPair]
    resumed: int
    beyond_budget: bool


async def collect_pairs(
    asker: PairAsker,
    requests: RequestFile,
    blocks: BlockFolder,
    *,
    most: int,
    budget: float,
    margin: float,
    on_progress: Progress,
) -> Collected:
    """Ask requests until there is a verdict, until `most` pairs, or until the file or the budget ends.

    Args:
        asker: Asks both arms and the judge.
        requests: What is drawn from.
        blocks: Files of the finished pairs, by the number of the request.
        most: Most pairs, at least 1.
        budget: Most dollars, of this run and of all before it.
        margin: Largest loss that is accepted, in [0, 2].
        on_progress: Called with the number of draws.

    Raises:
        PairsStoppedError: Nothing came of the last pairs, the judge cannot be read, or the budget is too
            small for one.
    """
    sizes = requests.sizes
    starts = [sum(sizes[:group]) for group in range(len(sizes))]
    order, places = PairDraws(sizes=sizes, seed=asker.seed, drawn=most).draw()
    numbers = {request: starts[request[0]] + request[1] for request in order}
    finished = blocks.list_finished()
    known = {
        request: AskedPair.model_validate_json(blocks.read(number))
        for request, number in numbers.items()
        if number in finished
    }
    resumed, beyond_budget, outcomes = len(known), False, list[PairOutcome]()
    while True:
        drawn = next((n for n, request in enumerate(order) if request not in known), len(order))
        on_progress("pairs", drawn, len(order))
        draws = PairDraws(sizes=sizes, seed=asker.seed, drawn=drawn)
        ordered = [known[request].pair for request in order[:drawn]]
        if drawn and decide_now(draws, ordered, places[:drawn], margin) is not Word.NOT_YET:
            break
        left = [request for request in order[drawn:] if request not in known][:AT_ONCE]
        spent = sum(sum(one.pair.usd) for one in known.values())
        bounds = [asker.compute_most_usd(requests.asks[request[0]][request[1]], *request) for request in left]
        batch = [
            request for n, request in enumerate(left, 1) if spent + sum(bounds[:n]) <= budget
        ]  # in this order: each is set aside on top of those before it
        if not batch:
            beyond_budget = bool(left)
            break
        found = await ask_batch(asker, requests, blocks, batch, numbers)
        outcomes += [one.pair.outcome for one in found.values()]
        if outcomes.count(PairOutcome.UNREADABLE) >= UNREAD and PairOutcome.JUDGED not in outcomes:
            raise PairsStoppedError(
                f"the judge {asker.judge!r} gave no verdict that can be read: {asker.unread}. It must answer "
                f'{{"better": 1}}, {{"better": 2}}, or {{"better": 0}} if neither is better. Name another '
                "language model with --judge"
            )
        known |= found
    if not drawn:
        bound = asker.compute_most_usd(requests.asks[order[0][0]][order[0][1]], *order[0])
        raise PairsStoppedError(
            f"the budget of ${budget:g} is less than the ${bound:.4g} that the first pair may cost at most: "
            "raise --budget, or set a lower `answering.max_tokens`"
        )
    asked = [known[request] for request in order[:drawn]]
    return Collected(draws, asked, min(resumed, drawn), beyond_budget)


async def ask_batch(
    asker: PairAsker,
    requests: RequestFile,
    blocks: BlockFolder,
    batch: Sequence[tuple[int, int]],
    numbers: Mapping[tuple[int, int], int],
) -> dict[tuple[int, int], AskedPair]:
    """Ask pairs at the same time, and write each as soon as it is finished.

    A pair in which an arm failed is written once another pair has answers of both: if there is none, the
    reason may be the network. Raises PairsStoppedError.
    """

    async def ask(request: tuple[int, int]) -> AskedPair:
        group, member = request
        one = await asker.ask(requests.asks[group][member], group, member)
        if one.is_whole:
            blocks.write(numbers[request], one.model_dump_json().encode())
        return one

    ended = await asyncio.gather(*map(ask, batch), return_exceptions=True)
    for error in ended:
        if isinstance(error, GeneratorError | ArmError | TimeoutError):
            raise PairsStoppedError(
                f"the judge {asker.judge!r} failed: {describe_error(error)}. {GO_ON}"
            ) from error
        if isinstance(error, BaseException):
            raise error
    found = {request: one for request, one in zip(batch, ended, strict=True) if isinstance(one, AskedPair)}
    failed = [one.pair.outcome for one in found.values() if not one.is_whole]
    if len(failed) == len(batch) > 1:
        raise PairsStoppedError(
            f"all of the last {len(batch)} pairs failed ({failed[0].replace('_', ' ')}). {GO_ON}"
        )
    for request, one in found.items():
        if not one.is_whole:
            blocks.write(numbers[request], one.model_dump_json().encode())
    return found


def identify_run(
    config: "AppConfig", requests: RequestFile, challenger: str, reference: str, model: str, seed: int
) -> dict[str, str]:
    """Return what makes two runs the same, so that one goes on where the other stopped."""
    arms = {
        arm: {
            "specs": {
                name: spec.model_dump(mode="json")
                for name, spec in ArmGraph(config.arms).closure(arm).items()
            },
            "answers": config.find_answering(arm).model_dump(mode="json"),
        }
        for arm in (challenger, reference)
    }
    models = {name: llm_catalog.identify(spec) for name, spec in config.models.items()}
    about = json.dumps([arms, models], sort_keys=True, default=str)
    return {
        "requests": requests.digest,
        "challenger": challenger,
        "reference": reference,
        "judge": model,
        "seed": str(seed),
        "arms and models": hashlib.sha256(about.encode()).hexdigest(),
    }


def run_pairs(
    config: "AppConfig",
    requests: RequestFile,
    *,
    challenger: str,
    reference: str,
    model: str,
    seed: int,
    most: int,
    budget: float,
    margin: float,
    on_progress: Progress,
) -> Collected:
    """Open the arms, and collect pairs until there is a verdict; goes on where a run before it stopped.

    Raises:
        ArmError: An arm cannot be built.
        GeneratorError: A language model cannot be loaded, or nothing came of the last pairs.
        JobError: Another process collects the same pairs now.
    """
    identity = identify_run(config, requests, challenger, reference, model, seed)
    name = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    folder = config.home_path / "pairs"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    async def run() -> Collected:
        turns = await open_turns(config)
        asker = PairAsker(turns, challenger, reference, model, seed, config.privacy.redactor() or str)
        try:
            return await collect_pairs(
                asker, requests, blocks, most=most, budget=budget, margin=margin, on_progress=on_progress
            )
        finally:
            for one in turns.writer.models.values():
                await one.generator.close()

    with open_blocks(folder / name, identity) as blocks:
        return asyncio.run(run())


def read_logged_pairs(config: "AppConfig", challenger: str, reference: str) -> tuple[str, list[StoredPair]]:
    """Return the digest of the pairs that `observations.shadow` has put into the log, and these pairs.

    Raises:
        ValueError: There is none.
        LogUnavailableError: Try again later.
    """
    with closing(Store(config.database_url, config.reward.join, create=False)) as store:
        found = list_second_answers(store, challenger, reference)
    if not found:
        raise ValueError(
            f"the log has no pair of {challenger} and {reference}: set `observations.shadow`, or name a file "
            "of requests"
        )
    digest = hashlib.sha256("\n".join(one.decision_id for one in found).encode()).hexdigest()
    return digest, [_store(one, challenger, member) for member, one in enumerate(found)]


def _store(one: SecondAnswer, challenger: str, member: int) -> StoredPair:
    """Return a second answer as a pair."""
    is_second = one.other == challenger
    order = (1, 0) if is_second else (0, 1)
    verdict: dict[str, float] = {}
    outcome = PairOutcome.UNREADABLE if one.value is None else PairOutcome.EQUAL
    if one.value is not None and one.is_judged:
        outcome = PairOutcome.JUDGED
        is_first = one.swapped == is_second
        verdict["shown_first" if is_first else "shown_second"] = one.value if is_second else -one.value
    usd, seconds = (tuple(amounts[at] for at in order) for amounts in (one.usd, one.seconds))
    return StoredPair(
        group=0,
        member=member,
        outcome=outcome,
        usd=(usd[0], usd[1], one.usd[2]),
        seconds=(seconds[0], seconds[1]),
        **verdict,
    )
