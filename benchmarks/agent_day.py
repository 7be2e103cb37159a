"""Is the receipt true of a day of a coding agent's traffic, that came in Anthropic's protocol?

    python -m benchmarks.agent_day [--sessions 500] [--days 100]

People work in sessions with a coding agent: each task is a request with marked instructions, tools and a
reminder, and further requests with the results of the tools that the model used. The whole application runs
in this process, its clock is moved, and all requests come over `POST /v1/messages` as an agent streams them.
Two arms answer: `small` is a stand-in in this process, `large` a server of this machine behind
`engine: anthropic`. Both say how many tokens they read, had cached and wrote, at their own prices. Whether an
answer is right is drawn with a probability that depends on the arm, the task and the session; 9 of 10 tasks
get it as feedback. A session goes on more often after a wrong answer. The policy learns every hour, and
draws 5 % at random.

The next morning `armwise prove` says what was saved and lost beside always `large`. The truth is known: the
dollars and the quality of `large` on the same tasks, and those of the arms as they were drawn, in expectation
over the draw. With --days, so many smaller days follow, each with a new log and the same application, and it
is counted in how many each interval holds the truth.
"""

import asyncio
import heapq
import re
import socket
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import httpx
import numpy as np
import orjson
import sqlalchemy as sa
import typer
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from armwise.agent.api import choose_code, create_app
from armwise.agent.config import AppConfig, parse
from armwise.agent.evaluation import verdict
from armwise.agent.hosts import arms as hosted
from armwise.agent.lab.receipt import SavingsReceipt, assess, make_receipt, read_store, write_sentence
from armwise.agent.learning import Learner, Recipe
from armwise.agent.serving import Backends, Replica, Telemetry
from armwise.arms.deployments import Embedders
from armwise.arms.llm import Chunk, Generator, Prompt, TokenPrices, build_generator
from armwise.arms.llm.base import ScriptedGenerator
from armwise.arms.llm.pricing import PricedGenerator
from armwise.arms.llm.writing import DEFAULT
from armwise.feedback.clock import SteadyClock
from armwise.feedback.log import Store
from armwise.feedback.log import tables as t
from armwise.feedback.ope import noninferiority
from armwise.feedback.ope.noninferiority import Ends
from armwise.feedback.training_log import take_epoch
from tests.agent.coding_agent import ask, events, put_together, request, results

SMALL, LARGE = "small", "large"

DAY, BEGIN = 86_400.0, 1_790_812_800.0
"""Length of the day, and its midnight, 2026-10-01."""

LEARN_S, FEEDBACK_S, TASK_S, STEP_S = 3600.0, 300.0, 120.0, 5.0
"""Seconds between two steps of the learner; mean seconds to the feedback, from one task of a session to the
next, and from one request of a task to the next."""

RATED = 0.9
"""Share of the tasks that get feedback."""

LONGEST = 6
"""Most tasks of a session."""

FEWER, MORE_AT_RANDOM = 200, 0.5
"""Sessions of a smaller day, and the share of its draws at random: with 5 % so few say next to nothing."""

AT_RANDOM = 0.05
"""Share of the draws of a day at random."""

PRICES = {SMALL: (0.0003, 0.0015, 0.00003), LARGE: (0.003, 0.015, 0.0003)}
"""USD for a thousand tokens read, written, and read from the cache."""

INSTRUCTIONS = 12_000
"""Tokens of the instructions and tools, which a model has cached."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of task.

    Attributes:
        words: What a person writes.
        right: Probability that an answer is right, by arm.
        rounds: Rounds of tools that an arm takes on average, by arm.
    """

    words: str
    right: dict[str, float]
    rounds: dict[str, float]


KINDS = (
    Kind("rename the variable in the loop", {SMALL: 0.93, LARGE: 0.95}, {SMALL: 0.5, LARGE: 0.5}),
    Kind("write a test for this function", {SMALL: 0.80, LARGE: 0.90}, {SMALL: 1.5, LARGE: 1.0}),
    Kind("why does the scheduler deadlock?", {SMALL: 0.40, LARGE: 0.85}, {SMALL: 3.0, LARGE: 2.0}),
)


@dataclass(frozen=True, slots=True)
class Task:
    """What a person asks for, and what each arm would make of it.

    Attributes:
        number: Number of the task, which both models read in its text.
        session: Number of the session.
        turn: Place in the session.
        text: What the person writes.
        right: Probability that the answer is right, by arm.
        usage: Tokens read, of these cached, and written by each request, by arm.
        luck: Uniform numbers: of the answer, of its feedback, and of the end of the session.
        delay_s: Seconds until the feedback.
    """

    number: int
    session: int
    turn: int
    text: str
    right: dict[str, float]
    usage: dict[str, list[tuple[int, int, int]]]
    luck: tuple[float, float, float]
    delay_s: float

    def dollars(self, arm: str) -> float:
        """Return what the task costs with an arm."""
        read, written, kept = PRICES[arm]
        return (
            sum(
                (prompt - cached) * read + cached * kept + answer * written
                for prompt, cached, answer in self.usage[arm]
            )
            / 1000.0
        )


def make_task(seed: int, number: int, session: int, turn: int) -> Task:
    """Return a task of a day."""
    mood = np.random.default_rng([seed, 0, session]).uniform(-0.05, 0.05)
    rng = np.random.default_rng([seed, 1, session, turn])
    kind = KINDS[rng.choice(len(KINDS), p=[0.5, 0.3, 0.2])]
    asked = int(rng.integers(100, 2_000))
    usage = {
        arm: _spend(1 + min(int(rng.poisson(kind.rounds[arm])), 6), asked, rng) for arm in (SMALL, LARGE)
    }
    right = {arm: p + mood for arm, p in kind.right.items()}
    luck = float(rng.random()), float(rng.random()), float(rng.random())
    delay_s = min(float(rng.exponential(FEEDBACK_S)), 5.0 * FEEDBACK_S)
    return Task(number, session, turn, f"Task {number}: {kind.words}", right, usage, luck, delay_s)


def _spend(requests: int, asked: int, rng: np.random.Generator) -> list[tuple[int, int, int]]:
    """Return the tokens of each request of a task: each reads all of the one before from the cache."""
    cached, read, usage = INSTRUCTIONS, INSTRUCTIONS + asked, []
    for _ in range(requests):
        written = int(80 * rng.lognormal(0.0, 0.7)) + 20
        usage.append((read, cached, written))
        cached, read = read, read + written + int(rng.integers(200, 4_000))
    return usage


@dataclass(slots=True)
class World:
    """The tasks of a day that have been asked so far.

    Attributes:
        seed: Seed of the day.
        tasks: The tasks by number.
    """

    seed: int
    tasks: list[Task] = field(default_factory=list)

    def next_task(self, session: int, turn: int) -> Task:
        """Return the next task of a session."""
        self.tasks.append(make_task(self.seed, len(self.tasks), session, turn))
        return self.tasks[-1]

    def answer(self, arm: str, text: str, used: int) -> tuple[bool, tuple[int, int, int]]:
        """Return whether an arm is done, else it uses a tool once more, and the tokens of its answer.

        Args:
            arm: Who answers.
            text: The conversation.
            used: Results of tools in it.
        """
        found = re.search(r"Task (\d+):", text)
        if found is None:
            raise ValueError("a task was expected in the conversation")
        usage = self.tasks[int(found[1])].usage[arm]
        return used + 1 == len(usage), usage[used]


# -- the two models ------------------------------------------------------------------------------


class SmallModel(ScriptedGenerator):
    """The small model, in this process.

    Args:
        world: Says what it does.
    """

    def __init__(self, world: World) -> None:
        super().__init__(self._act, model=SMALL)
        self._world = world

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        """Yield the answer, with the tokens that the world says."""
        read, cached, written = self._decide(prompt)[1]
        async for chunk in super().stream(prompt):
            if chunk.finish_reason is not None:
                chunk = replace(chunk, prompt_tokens=read, cached_tokens=cached, completion_tokens=written)
            yield chunk

    def _act(self, prompt: Prompt) -> str | Sequence[tuple[str, str]]:
        return "It is done." if self._decide(prompt)[0] else [("Read", '{"file_path": "/a.py"}')]

    def _decide(self, prompt: Prompt) -> tuple[bool, tuple[int, int, int]]:
        text = "\n".join(message["content"] for message in prompt.messages if message["role"] == "user")
        return self._world.answer(SMALL, text, sum(message["role"] == "tool" for message in prompt.messages))


def serve_large(world: World) -> FastAPI:
    """Return the server of the large model, in Anthropic's protocol."""
    app = FastAPI()

    @app.post("/v1/messages")
    async def write(request: Request) -> StreamingResponse:
        messages = orjson.loads(await request.body())["messages"]
        blocks = [block for message in messages for block in message["content"]]
        text = "\n".join(block["text"] for block in blocks if block["type"] == "text")
        used = sum(block["type"] == "tool_result" for block in blocks)
        frames = list(_write_events(*world.answer(LARGE, text, used)))
        return StreamingResponse(iter(frames), media_type="text/event-stream")

    return app


def _write_events(done: bool, usage: tuple[int, int, int]) -> Iterator[bytes]:
    """Yield the events of an answer."""
    read, cached, written = usage
    counts = {"input_tokens": read - cached, "cache_read_input_tokens": cached, "output_tokens": 1}
    tool = {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {}}
    block = {"type": "text", "text": ""} if done else tool
    delta = {"type": "text_delta", "text": "It is done."}
    delta = delta if done else {"type": "input_json_delta", "partial_json": '{"file_path": "/a.py"}'}
    reason = "end_turn" if done else "tool_use"
    for event in (
        {"type": "message_start", "message": {"content": [], "usage": counts}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": written}},
        {"type": "message_stop"},
    ):
        yield b"event: " + str(event["type"]).encode() + b"\ndata: " + orjson.dumps(event) + b"\n\n"


@contextmanager
def served(app: FastAPI) -> Iterator[str]:
    """Serve an application from a thread of this process; yield its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_level="critical", lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


# -- the service ---------------------------------------------------------------------------------


def configure(folder: Path, url: str, share: float) -> AppConfig:
    """Return the configuration of the service."""
    corpus = folder / "corpus.jsonl"
    corpus.write_bytes(orjson.dumps({"id": "none", "title": "none", "text": "no arm searches it"}))
    small, large = (
        dict(
            zip(
                ("usd_per_kilotoken_in", "usd_per_kilotoken_out", "usd_per_kilotoken_cached"),
                PRICES[arm],
                strict=True,
            )
        )
        for arm in (SMALL, LARGE)
    )
    return parse(
        {
            "home": str(folder / "home"),
            "corpus": {"name": "one", "source": str(corpus)},
            "backbones": {},
            "arms": {
                SMALL: {"kind": "none"},
                LARGE: {"kind": "none", "answering": {"llm": LARGE}},
            },
            "llm": {"engine": "scripted", **small},
            "llms": {LARGE: {"engine": "anthropic", "base_url": url, "model": LARGE, **large}},
            "policy": {"kind": "linucb"},
            "exploration": share,
            "reward": {"metrics": {"right": {"type": "boolean"}}, "cost": {"usd": 1.0}, "cost_weight": 12.0},
            "limits": {"body_bytes": 1 << 20, "completion_tokens": 32_000},
        }
    ).resolve_places()


@dataclass(slots=True)
class Clock:
    """A clock that is moved."""

    now: float = BEGIN

    def __call__(self) -> float:
        """Return the time, seconds since the epoch."""
        return self.now


@dataclass(frozen=True, slots=True)
class Service:
    """A running application.

    Attributes:
        client: Speaks to it without a network.
        replica: Its state.
        learner: Learns when it is told to.
    """

    client: httpx.AsyncClient
    replica: Replica
    learner: Learner

    async def learn(self) -> None:
        """Learn what is new, and serve it."""
        self.learner.step()
        await self.replica.refresh()


@asynccontextmanager
async def running(config: AppConfig, world: World, clock: SteadyClock) -> AsyncIterator[Service]:
    """Run the application; the draws of its log are those of the seed."""
    with closing(Store(config.database_url, config.reward.join, clock=clock)) as store:
        with store.writing() as connection:
            connection.execute(sa.update(t.log).values(secret=f"day {world.seed}"))
        encoders = Embedders(config.backbones)
        prices = TokenPrices.model_validate(config.llm.model_dump(include=set(TokenPrices.model_fields)))
        small: Generator = PricedGenerator(SmallModel(world), prices)
        large = build_generator(config.llms[LARGE])
        arms = hosted.open_here(config, {}, encoders, small)
        backends = Backends(arms, encoders, {DEFAULT: small, LARGE: large})
        replica = Replica(
            config, backends, clock=clock, telemetry=Telemetry(), gate=verdict, choose_code=choose_code
        )
        epoch = take_epoch(store, "benchmark", 0.0)
        learner = Learner(store, Recipe.from_config(config), list(config.actions), epoch, clock)
        app = create_app(replica)
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
        ):
            service = Service(client, replica, learner)
            await service.learn()
            while not replica.ready:
                replica.check()
                await asyncio.sleep(0.01)
            yield service


# -- the day -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Drawn:
    """A draw of the service.

    Attributes:
        task: The task.
        p: Probability of the large arm.
    """

    task: Task
    p: float

    @property
    def lead(self) -> float:
        """Expected quality as served, minus that of the large arm."""
        return (1.0 - self.p) * (self.task.right[SMALL] - self.task.right[LARGE])

    @property
    def saved(self) -> float:
        """Expected dollars of the large arm, minus those as served."""
        return (1.0 - self.p) * (self.task.dollars(LARGE) - self.task.dollars(SMALL))


@dataclass(slots=True)
class Day:
    """What happened on a day.

    Attributes:
        requests: Requests answered.
        seconds: Seconds that the day took, on the wall.
        dollars: Dollars of all answers by the prices of the world.
        draws: Draws by the id of their decision.
    """

    requests: int = 0
    seconds: float = 0.0
    dollars: float = 0.0
    draws: dict[str, Drawn] = field(default_factory=dict)


async def work(service: Service, task: Task, clock: Clock, day: Day) -> tuple[str, str]:
    """Ask for a task as an agent does, tools and all; return the id of the draw and the arm."""
    session = f"00000000-0000-4000-8000-{task.session:012d}"
    asked, later = ask(task.text), list[dict[str, Any]]()
    draw, arm = "", ""
    while True:
        key = f"{task.number}-{len(later)}"
        body = request(*later, asked=asked, session=session, agent={"episode_id": session})
        response = await service.client.post("/v1/messages", json=body, headers={"idempotency-key": key})
        read = events(response)
        day.requests += 1
        if not draw:
            draw, arm = response.headers["x-decision-id"], response.headers["x-arm"]
            day.draws[draw] = Drawn(task, read[0]["message"]["agent"]["pmf"][LARGE])
        if read[-2]["delta"]["stop_reason"] != "tool_use":
            day.dollars += task.dollars(arm)
            return draw, arm
        later += results(put_together(read))
        clock.now += STEP_S


async def live(service: Service, world: World, clock: Clock, sessions: int) -> Day:
    """Let a day pass. Sessions begin evenly over the day, and run side by side."""
    day = Day()
    waiting: list[tuple[float, int, str, Any]] = [
        (BEGIN + DAY * session / sessions, session, "task", (session, 0)) for session in range(sessions)
    ]
    order, learned_at, begun = sessions, BEGIN, time.perf_counter()
    while waiting:
        at, _, what, item = heapq.heappop(waiting)
        clock.now = max(clock.now, at)
        if clock.now >= learned_at + LEARN_S:
            await service.learn()
            learned_at = clock.now
        if what == "feedback":
            response = await service.client.post("/v1/feedback", json=item)
            response.raise_for_status()
            continue
        task = world.next_task(*item)
        draw, arm = await work(service, task, clock, day)
        right = task.luck[0] < task.right[arm]
        if task.luck[1] < RATED:
            order += 1
            told = {"decision_id": draw, "metric_name": "right", "value": right}
            heapq.heappush(waiting, (clock.now + task.delay_s, order, "feedback", told))
        if task.turn + 1 < LONGEST and task.luck[2] < (0.4 if right else 0.8):
            order += 1
            heapq.heappush(waiting, (clock.now + TASK_S, order, "task", (task.session, task.turn + 1)))
    clock.now += DAY / 4.0
    await service.learn()
    day.seconds = time.perf_counter() - begun
    return day


@dataclass(frozen=True, slots=True)
class Proof:
    """What is said of a day, and the truth.

    Attributes:
        receipt: What `armwise prove` says.
        lead: True quality as served minus that of the large arm, of the decisions that count.
        saved: True dollars that were saved, of the decisions that count.
    """

    receipt: SavingsReceipt
    lead: float
    saved: float

    @property
    def holds(self) -> tuple[bool, bool]:
        """Whether the interval of the savings and that of the quality hold the truth."""
        figures = self.receipt.comparison
        return _hold(figures.saved, self.saved), _hold(figures.quality, self.lead)


def _hold(ends: Ends | None, truth: float) -> bool:
    if ends is None:
        raise ValueError("an interval was expected")
    return ends[1] <= truth <= ends[2]


def prove(config: AppConfig, day: Day) -> Proof:
    """Make the receipt of a day from its log, as `armwise prove` does, and compute the truth."""
    with closing(Store(config.database_url, config.reward.join)) as store:
        traffic = read_store(store, config, lambda *_: None)
        with store.reading() as connection:
            ids = dict(connection.execute(sa.select(t.decisions.c.seq, t.decisions.c.id)).all())
    settlement = traffic.settlement
    sessions = traffic.sessions(settlement)
    for remark in assess(traffic, settlement, sessions):
        if remark.fatal:
            raise ValueError(remark.text)
    receipt = make_receipt(traffic, sessions, settlement)
    counted = noninferiority.count(sessions, receipt.figures.reference)
    draws = [day.draws[ids[seq]] for seq in sessions.rows.seq[counted.row].tolist()]
    lead, saved = np.array([draw.lead for draw in draws]), np.array([draw.saved for draw in draws])
    return Proof(receipt, float(lead[counted.rated].mean()), float(saved[counted.priced].mean()))


async def spend(folder: Path, sessions: int, seed: int, share: float) -> tuple[AppConfig, Day]:
    """Let a day pass at a new service; return its configuration and what happened."""
    world, clock = World(seed), Clock()
    with served(serve_large(world)) as url:
        config = configure(folder, url, share)
        async with running(config, world, SteadyClock(clock, clock)) as service:
            return config, await live(service, world, clock, sessions)


def run(sessions: int, seed: int, share: float = AT_RANDOM) -> tuple[Day, Proof]:
    """Return what happened on a day, and what is said of it."""
    with TemporaryDirectory() as folder:
        config, day = asyncio.run(spend(Path(folder), sessions, seed, share))
        return day, prove(config, day)


def describe(day: Day, proof: Proof) -> str:
    """Return what is said of a day and the truth, in a few lines."""
    rate = f"{day.requests / day.seconds:.0f} requests/s, {len(day.draws) / day.seconds:.0f} decisions/s"
    truth = f"${1000.0 * proof.saved:.2f} saved per 1,000, {100.0 * proof.lead:+.1f} points of quality"
    return (
        f"{day.requests:,} requests, {len(day.draws):,} decisions, ${day.dollars:.2f}; {rate}\n"
        f"{write_sentence(proof.receipt)}\ntruth: {truth}"
    )


def main(
    sessions: Annotated[int, typer.Option(min=110, help="Sessions of the day.")] = 500,
    seed: Annotated[int, typer.Option(help="Seed of the day.")] = 0,
    days: Annotated[int, typer.Option(min=0, help="Smaller days that follow.")] = 0,
) -> None:
    """Print what is said of a day and the truth, and in how many further days the intervals held it."""
    print(describe(*run(sessions, seed)), flush=True)
    proofs, begun = list[Proof](), time.perf_counter()
    for number in range(1, days + 1):
        proofs.append(run(FEWER, seed + number, MORE_AT_RANDOM)[1])
        if number % 5 == 0 or number == days:
            print(f"{time.perf_counter() - begun:.0f} s: {count_held(proofs)}", flush=True)


def count_held(proofs: Sequence[Proof]) -> str:
    """Return in how many days the intervals held the truth, and how wide they were, in a few words."""
    saved, quality = (sum(column) for column in zip(*(proof.holds for proof in proofs), strict=True))
    ends = [(proof.receipt.comparison.saved, proof.receipt.comparison.quality) for proof in proofs]
    widths = [np.median([end[2] - end[1] for end in column if end]) for column in zip(*ends, strict=True)]
    return (
        f"{len(proofs)} days of {FEWER} sessions: savings held in {saved}, quality in {quality}; median "
        f"widths ${1000.0 * widths[0]:.2f} per 1,000 and {100.0 * widths[1]:.0f} points"
    )


if __name__ == "__main__":
    typer.run(main)
