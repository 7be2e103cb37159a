"""The service in a world: real replicas and a real learner, over stand-ins for arms and the language model.

    Service --- replicas: `create_app` over a `Replica`, each in a process with an event loop
       |------- learner: `JobsHost`, in a process of its own or in that of the replica
       `------- a supervisor for each, which starts it again after it has ended

Requests are spoken to the application itself, as its server would: what a killed replica has not sent is
lost.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import orjson
from river.drift import ADWIN

from armwise.agent.access import keyring as keyrings
from armwise.agent.api.errors import choose_code
from armwise.agent.api.routes import create_app
from armwise.agent.background import Work
from armwise.agent.config import AppConfig
from armwise.agent.evaluation import Evaluations
from armwise.agent.hosts.jobs import JobsHost
from armwise.agent.jobs import Jobs, ProgressCallback, this_process
from armwise.agent.learning import Recipe, digest_configuration, list_known_arms, publish_candidate
from armwise.agent.policies import PolicySpec
from armwise.agent.serving import Backends, Replica, Telemetry
from armwise.arms.base import ArmError, Passage, Query, Retrieval
from armwise.arms.llm import Chunk, Generator, GeneratorError, Prompt
from armwise.feedback import drift
from armwise.feedback.clock import SteadyClock
from armwise.feedback.errors import LogGapError, LogUnavailableError
from armwise.feedback.log import ChangeWatch, Store
from armwise.feedback.registry.evaluations import StoredResult
from armwise.feedback.training_log import StartingPoint, read_position
from tests.agent.fakes import CONFIG, FakeArms, FakeEmbedders, FakeGate
from tests.simulation.history import Ceiling, Means
from tests.simulation.scheduler import EventLoop, Process, Thread, World

LOOK_S, AGAIN_S = 0.5, 0.5
"""Pause between two looks at the health of a part, and before a part that has ended is started again."""

ARM_S, WRITE_S, OVER_S = 0.5, 1.0, 8.0
"""Time limits of an arm, of the language model and of the wait for it, and how long one hangs, seconds."""


AGGREGATION = {"thumb": "last", "right": "mean"}
"""How several values of a metric become one."""

WAIT_S = 4.0
"""Wait time of a decision, so short that decisions are closed while the world lasts, seconds."""


CORRECTION_S = 0.7
"""How long a rating can be corrected where it is learned at once, seconds."""

INTERVAL_S = 1.5
"""Pause between two steps of a learner, seconds."""

IN_FLIGHT = 6
"""Most requests at once of a replica."""

CEILING = Ceiling(steps=0.6, window=20)
"""The budget, where there is one."""

MEANS = Means(
    {"kind": "linucb", "params": {"dims": 0, "shared": False}},
    alpha=0.2,
    ridge=100.0,
    prior=1.0,
    ranges={"thumb": (-1.0, 1.0), "right": (0.0, 1.0)},
    cost_weight=0.1,
    shares=(0.02, 0.15),
)
"""The configured policy, so simple that its distributions can be computed from the log with a pencil."""


def build_nervous_detector() -> ADWIN:
    """Return a detector so nervous that changes are detected while a world lasts."""
    return ADWIN(delta=1.0, clock=1, min_window_length=1, grace_period=1)


def make_document(url: str, *, at_once: bool, paced: bool) -> dict[str, Any]:
    """Return a configuration with short waits, in which decisions are closed while the world lasts."""
    drift.monitor.build_detector = build_nervous_detector
    return {
        **CONFIG,
        "arms": {**CONFIG["arms"], "again": {"kind": "bm25", "params": {"b": 0.5}, "action": False}},
        "budget": {"steps_per_request": CEILING.steps, "window": CEILING.window} if paced else None,
        "log_url": url,
        "policy": MEANS.policy,
        "reward": {
            "metrics": {
                "thumb": {"range": [-1, 1], "aggregation": AGGREGATION["thumb"]},
                "right": {"type": "boolean", "aggregation": AGGREGATION["right"]},
            },
            "complete": "any" if at_once else "deadline",
            "cost_weight": MEANS.cost_weight,
            "wait_time": f"PT{WAIT_S:g}S",
            "correction_time": f"PT{CORRECTION_S:g}S",
            "default": None if at_once else 0.0,
        },
        "limits": {
            "in_flight": IN_FLIGHT,
            "arm_timeout_s": ARM_S,
            "llm_timeout_s": WRITE_S,
        },
    }


@dataclass(slots=True)
class Upstream:
    """Arms and a language model that do as the weather is.

    Attributes:
        world: The world.
        rng: Draws what each call meets.
        bad: Share of the calls that fail, hang or break off.
        most: The largest number of calls that a process had under way at once, by process.
    """

    world: World
    rng: random.Random
    bad: float = 0.0
    most: dict[Process, int] = field(default_factory=dict)
    _under_way: Counter[Process] = field(default_factory=Counter)

    @contextmanager
    def called(self) -> Iterator[None]:
        """Count a call of the process that runs."""
        process = self.world.process
        self._under_way[process] += 1
        self.most[process] = max(self._under_way[process], self.most.get(process, 0))
        try:
            yield
        finally:
            self._under_way[process] -= 1

    async def search(self, arm: str, query: Query, k: int) -> Retrieval:
        """Find passages, or fail in one of the ways in which a search fails."""
        with self.called():
            await asyncio.sleep(self.rng.expovariate(50.0))
            if self.rng.random() < self.bad:
                match self.rng.randrange(3):
                    case 0:
                        raise ArmError("the index is gone")
                    case 1:
                        await asyncio.sleep(OVER_S)
                    case 2:
                        raise ZeroDivisionError("an arm with a fault of its own")
        passages = tuple(Passage(f"{arm}-{i}", "", query.text, 1.0 / i) for i in range(1, k + 1))
        return Retrieval(passages, steps=0 if arm == "none" else 1)


class Writer(Generator):
    """A language model that writes three words, or breaks off, hangs or says nothing."""

    model = "writer"

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        """Write, in words of the question."""
        rng, asked = self._upstream.rng, str(prompt.messages[-1]["content"])
        fate = rng.randrange(3) if rng.random() < self._upstream.bad else 3
        for word in ("the ", "Danube ", asked):
            with self._upstream.called():
                await asyncio.sleep(rng.expovariate(50.0))
                if fate == 0:
                    await asyncio.sleep(OVER_S)
            yield Chunk(word)
            if fate == 1:
                raise GeneratorError("connection reset by peer")
            if fate == 2:
                return
        yield Chunk("", prompt_tokens=7, completion_tokens=3, finish_reason="stop")

    async def close(self) -> None:
        """Do nothing."""


@dataclass(slots=True)
class Response:
    """What a client received; `whole` is False where the connection broke off before the end."""

    status: int = 0
    body: bytes = b""
    whole: bool = False

    @property
    def document(self) -> Any:
        """The body as JSON."""
        return orjson.loads(self.body)


EVALUATED = 6
"""Steps of an evaluation, of a second each on average."""


class Part:
    """A process of the service that is started again whenever it has ended.

    Attributes:
        process: The one that runs, or has ended.
        loop: The event loop of the process, if it has one.
        app: The application, once it answers.
    """

    def __init__(
        self, world: World, name: str, run: Callable[["Part"], None], kill: Callable[[Process], None]
    ) -> None:
        self._world, self._name, self._run, self._kill = world, name, run, kill
        self.process: Process
        self.loop: EventLoop | None = None
        self.app: Any = None
        self.starts = 0
        self.ahead_s = 0.0
        self._supervisor: Thread | None = None

    def start(self) -> None:
        """Start it, and what watches over it."""
        self.process = self._world.start_process(self._name)
        self._supervisor = self._world.start(
            self._world.outside, f"supervisor of {self._name}", self._supervise
        )

    def die(self) -> None:
        """Kill the process that runs."""
        self._kill(self.process)

    def start_beside(self) -> None:
        """Start a second process, that nobody asks, as a service does that replaces one that hangs."""
        world = self._world
        other = Part(world, f"second {self._name}", self._run, self._kill)
        other.process = world.start_process(other._name)
        world.start(other.process, "main", other._main)

    def _supervise(self) -> None:
        world = self._world
        while True:
            process = self.process = world.start_process(self._name)
            process.ahead_s = self.ahead_s
            self.starts += 1
            self.loop = self.app = None
            world.start(process, "main", self._main)
            process.at_death.append(lambda: world.wake(self._supervisor))  # type: ignore[arg-type]
            while process.alive:
                world.block()
            world.sleep(AGAIN_S)

    def _main(self) -> None:
        process = self._world.process
        try:
            self._run(self)
        except Exception as error:  # noqa: BLE001 - a process ends by what it raises, and is started again
            self._world.note(f"{self._name} ends: {type(error).__name__}: {error}")
        self._kill(process)


class Service:
    """Replicas and a learner.

    Args:
        world: The world.
        config: The configuration.
        replicas: Number of replicas.
        together: Whether the learner shares the process of the only replica.
        evaluates: Whether a worker runs evaluations, in a process of its own.
        rng: Draws what arms and the language model do.
        kill: Kills a process, and what it has open.
    """

    def __init__(
        self,
        world: World,
        config: AppConfig,
        replicas: int,
        *,
        together: bool,
        evaluates: bool,
        rng: random.Random,
        kill: Callable[[Process], None],
    ) -> None:
        self._world, self._config, self._together, self._kill = world, config, together, kill
        self.upstream = Upstream(world, rng)
        keyrings._DIGITS = keyrings._digits()
        self.replicas = [Part(world, f"replica {n}", self._serve, kill) for n in range(replicas)]
        self.learner = None if together else Part(world, "learner", self._learn, kill)
        self.worker = Part(world, "worker", self._work, kill) if evaluates else None
        others = (part for part in (self.worker, self.learner) if part is not None)
        self.parts = [*self.replicas, *others]

    def start(self) -> None:
        """Start all parts."""
        for part in self.parts:
            part.start()

    def _backends(self) -> Backends:
        search = self.upstream.search
        arms = FakeArms({arm: partial(search, arm) for arm in ("none", "bm25", "dense", "graph")})
        return Backends(arms, FakeEmbedders(), {"default": Writer(self.upstream)})

    def _serve(self, part: Part) -> None:
        part.loop = EventLoop(self._world)
        part.loop.run_until_complete(self._serving(part))

    async def _serving(self, part: Part) -> None:
        replica = await asyncio.to_thread(self._open)
        app = create_app(replica)
        learner = None
        async with app.router.lifespan_context(app):
            part.app = app
            while True:
                replica.check()
                if self._together and learner is None:
                    learner = await asyncio.to_thread(JobsHost, self._config, [Work.LEARNER], INTERVAL_S)
                if learner is not None:
                    await asyncio.to_thread(learner.check_health)
                await asyncio.sleep(LOOK_S)

    def _open(self) -> Replica:
        return Replica(
            self._config,
            self._backends(),
            clock=SteadyClock(),
            telemetry=Telemetry(),
            gate=FakeGate(promote=True),
            choose_code=choose_code,
        )

    def _learn(self, part: Part) -> None:
        del part
        host = JobsHost(self._config, [Work.LEARNER], INTERVAL_S)
        while True:
            host.check_health()
            self._world.sleep(LOOK_S)

    def _work(self, part: Part) -> None:
        """Run evaluations, as `JobsHost` does."""
        del part
        clock, config = SteadyClock(), self._config
        store = Store(config.database_url, config.reward.join, clock)

        def make() -> Evaluations:
            digest, changed = digest_configuration(config), ChangeWatch(store).is_due
            worker = this_process()
            return Evaluations(store, digest, worker, self._evaluate, clock, changed=changed)

        jobs = Jobs({Work.EVALUATION: make}, 1.0, clock)
        while True:
            clock.check()
            jobs.check()
            self._world.sleep(LOOK_S)

    def _evaluate(self, request: Mapping[str, Any], on_progress: ProgressCallback) -> StoredResult:
        """Take some seconds in the place of an evaluation, and answer with its request."""
        for part in range(EVALUATED):
            self._world.sleep(self.upstream.rng.expovariate(1.0))
            on_progress(part / EVALUATED)
        return StoredResult({"asked": dict(request)}, "<p></p>")

    def train(self, kind: str, *, anew: bool) -> None:
        """Let an operator's process train a candidate; wait until it has ended, or was killed.

        Args:
            kind: Kind of its policy.
            anew: Whether it learns only what comes from now on.
        """
        world, waiter = self._world, self._world.current
        process = world.start_process("operator")

        def main() -> None:
            try:
                self._publish(kind, anew=anew)
            except (LogUnavailableError, LogGapError) as error:
                world.note(f"{process} ends: {error}")
            self._kill(process)

        process.at_death.append(lambda: world.wake(waiter))  # type: ignore[arg-type]
        world.start(process, "main", main)
        while process.alive:
            world.block()

    def _publish(self, kind: str, *, anew: bool) -> None:
        config, clock = self._config, SteadyClock()
        store = Store(config.database_url, config.reward.join, clock)
        with store.reading() as connection:
            joined = read_position(connection, config.reward.join).examples_seq
        start = StartingPoint(after=joined) if anew else None
        recipe = Recipe(PolicySpec(kind=kind), config.reward, start)  # type: ignore[arg-type]
        version = publish_candidate(store, recipe, list_known_arms(store, config), clock)
        self._world.note(f"version {version.version} is a candidate")

    # -- requests ----------------------------------------------------------------------------------

    def request(
        self,
        part: Part,
        method: str,
        path: str,
        body: Any = None,
        *,
        key: str,
        patience_s: float,
        headers: Mapping[str, str],
    ) -> Response | None:
        """Send a request to a replica, and wait for the response; called by a thread outside of the service.

        Returns:
            The response; None if nobody listens, or the connection broke off before a status was sent.
        """
        world, process, loop, app = self._world, part.process, part.loop, part.app
        if app is None or loop is None or not process.alive:
            world.sleep(0.05)
            return None
        exchange = _Exchange(world, method, path, body, key, headers)
        process.at_death.append(exchange.cut)
        loop.call_soon_threadsafe(exchange.begin, app)
        if not exchange.wait(patience_s) and process.alive:
            loop.call_soon_threadsafe(exchange.hang_up)
        exchange.over = True
        return exchange.response if exchange.response.status else None


class _Exchange:
    """One request, and what has come back so far."""

    def __init__(
        self, world: World, method: str, path: str, body: Any, key: str, headers: Mapping[str, str]
    ) -> None:
        self.response, self.over = Response(), False
        self._world, self._waiter = world, world.current
        self._ended = False
        content = b"" if body is None else orjson.dumps(body)
        path, _, query = path.partition("?")
        sent = {
            "host": "service",
            "authorization": f"Bearer {key}",
            "content-type": "application/json",
            "content-length": str(len(content)),
            **headers,
        }
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.lower().encode(), value.encode()) for name, value in sent.items()],
            "client": ("127.0.0.1", 1),
            "server": ("service", 80),
            "state": {},
        }
        self._content = content
        self._left: asyncio.Event
        self._task: asyncio.Task[None]

    def begin(self, app: Any) -> None:
        """Let the application answer; in its event loop."""
        self._left = asyncio.Event()
        self._task = asyncio.ensure_future(self._answer(app))

    def hang_up(self) -> None:
        """Close the connection; in the event loop of the application."""
        self._left.set()

    def cut(self) -> None:
        """The process behind it has died."""
        self._end()

    def wait(self, patience_s: float) -> bool:
        """Wait for the end of the response, and return whether it came."""
        deadline = self._world.now + patience_s
        while not self._ended and self._world.now < deadline:
            self._world.block(deadline - self._world.now)
        return self._ended

    def _end(self) -> None:
        self._ended = True
        if self._waiter is not None and not self.over:
            self._world.wake(self._waiter)

    async def _answer(self, app: Any) -> None:
        try:
            await app(self._scope, self._receive(), self._send)
        finally:
            if not self._world.over:
                self._end()

    def _receive(self) -> Callable[[], Any]:
        sent = False

        async def receive() -> dict[str, Any]:
            nonlocal sent
            if not sent:
                sent = True
                return {"type": "http.request", "body": self._content, "more_body": False}
            await self._left.wait()
            return {"type": "http.disconnect"}

        return receive

    async def _send(self, message: dict[str, Any]) -> None:
        if self.over or self._left.is_set():
            return
        response = self.response
        if message["type"] == "http.response.start":
            response.status = message["status"]
        elif message["type"] == "http.response.body":
            response.body += message.get("body", b"")
            if not message.get("more_body", False):
                response.whole = True
                self._end()
