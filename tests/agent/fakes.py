"""Stand-ins at our own seams: a log in memory, arms that do as they are told, a counting encoder."""

import asyncio
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import httpx
import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from armwise.agent.api.errors import choose_code
from armwise.agent.api.routes import create_app
from armwise.agent.background import Work
from armwise.agent.config import parse
from armwise.agent.console.summary import write_summary
from armwise.agent.evaluation import Evaluations, verdict
from armwise.agent.evaluation.evaluation_task import evaluate_here
from armwise.agent.jobs import Jobs
from armwise.agent.learning import Learner, Recipe, active_recipe, digest_configuration
from armwise.agent.serving import Backends, Gate, Replica, Telemetry
from armwise.arms.base import ArmError, Passage, Query, Retrieval
from armwise.arms.llm import Generator, base
from armwise.arms.models.embedding import HashingEmbedder
from armwise.arms.profile import Profiles, ProfileSpec
from armwise.arms.retrievers import ArmSpec
from armwise.feedback.clock import SteadyClock
from armwise.feedback.errors import LogUnavailableError
from armwise.feedback.events import Context, Decision, Execution
from armwise.feedback.log import Receipt, Store
from armwise.feedback.log import tables as t
from armwise.feedback.registry import ActivePolicy
from armwise.feedback.training_log import read_position, take_epoch

DIM = 16
"""Of every fake backbone."""

Facts = Decision | Execution


class MemoryLog:
    """A log in memory.

    Attributes:
        committed: What is durable, in order.
        waiting: What was appended while the log is held.
        refuse: Facts of this type fail to be committed.
    """

    def __init__(self) -> None:
        self.committed: list[Facts] = []
        self.waiting: list[tuple[tuple[Facts, ...], asyncio.Future[Any]]] = []
        self.held = False
        self.refuse: type[Facts] | None = None

    def append(self, *facts: Facts) -> "asyncio.Future[Any]":
        future = asyncio.get_running_loop().create_future()
        self.waiting.append((facts, future))
        if not self.held:
            self.release()
        return future

    def release(self) -> None:
        """Commit what was held back."""
        self.held = False
        for facts, future in self.waiting:
            if self.refuse is not None and isinstance(facts[0], self.refuse):
                if not future.done():
                    future.set_exception(LogUnavailableError("the disk is full"))
                continue
            executed = {fact.decision_id for fact in self.committed if isinstance(fact, Execution)}
            receipts = []
            for fact in facts:
                if isinstance(fact, Execution) and fact.decision_id in executed:
                    receipts.append(Receipt())
                else:
                    self.committed.append(fact)
                    receipts.append(Receipt(len(self.committed)))
            if not future.done():
                future.set_result(receipts)
        self.waiting.clear()

    @property
    def decision(self) -> Decision:
        """The one decision."""
        (found,) = (fact for fact in self.committed if isinstance(fact, Decision))
        return found

    @property
    def execution(self) -> Execution:
        """The one execution."""
        (found,) = (fact for fact in self.committed if isinstance(fact, Execution))
        return found


Search = Callable[[Query, int], Awaitable[Retrieval]]


class FakeArms:
    """Arms that find `<arm>-1`, `<arm>-2` and so on, unless told otherwise.

    Attributes:
        calls: The arm, the query and k of each search.
        behaviour: What an arm does instead, by name.
        loaded: The arms of each call to build them.
        known: The arms that it was last told of.
        unbuildable: Arms that cannot be built.
        looked_at: The backbone and the passages of each call for vectors.
        kept: What an arm has found before, by name.
        sampled: What the sources of arms are about.
    """

    def __init__(self, behaviour: Mapping[str, Search] | None = None) -> None:
        self.calls: list[tuple[str, Query, int]] = []
        self.behaviour = dict(behaviour or {})
        self.loaded: list[frozenset[str]] = []
        self.known: frozenset[str] = frozenset()
        self.unbuildable: frozenset[str] = frozenset()
        self.looked_at: list[tuple[str, tuple[str, ...]]] = []
        self.kept: dict[str, Retrieval] = {}
        self.sampled: Profiles = {}

    async def recall(self, arm: str, query: Query, k: int) -> Retrieval | None:
        del query, k
        return self.kept.get(arm)

    async def search(self, arm: str, query: Query, k: int) -> Retrieval:
        self.calls.append((arm, query, k))
        if arm in self.behaviour:
            return await self.behaviour[arm](query, k)
        passages = tuple(Passage(f"{arm}-{i}", f"title {i}", f"text {i}", 1.0 / i) for i in range(1, k + 1))
        return Retrieval(passages, steps=0 if arm == "none" else 1)

    async def vectors(self, backbone: str, ids: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        self.looked_at.append((backbone, tuple(ids)))
        return dict(zip(ids, HashingEmbedder(DIM).encode_passages(list(ids)), strict=True))

    async def passages(self, ids: Sequence[str]) -> list[Passage]:
        found = (name.rpartition("-") for name in ids)
        return [
            Passage(f"{arm}-{i}", f"title {i}", f"text {i}") for arm, _, i in found if arm and i.isdigit()
        ]

    async def profiles(self, specs: Mapping[str, ArmSpec], spec: ProfileSpec) -> Profiles:
        del spec
        return {name: one for name, one in self.sampled.items() if name in specs}

    async def is_restricted(self) -> bool:
        return False

    async def load(self, specs: Mapping[str, ArmSpec]) -> None:
        if self.unbuildable & specs.keys():
            raise ArmError(f"arm {min(self.unbuildable)!r} cannot be built")
        self.loaded.append(frozenset(specs))

    def know(self, specs: Mapping[str, ArmSpec]) -> None:
        self.known = frozenset(specs)

    @property
    def asked(self) -> list[str]:
        """The arms that were run, in order."""
        return [arm for arm, _, _ in self.calls]


async def failing(_query: Query, _k: int) -> Retrieval:
    """An arm that is down."""
    raise ArmError("the index is gone")


async def hanging(_query: Query, _k: int) -> Retrieval:
    """An arm that never answers."""
    await asyncio.Event().wait()
    raise AssertionError("nobody sets the event")


async def reached() -> None:
    """Every host can be called."""


def pass_time(seconds: float) -> None:
    """Move the clock of the running event loop: what waits for a deadline within `seconds` is late."""
    loop = asyncio.get_running_loop()
    now = loop.time
    loop.time = lambda: now() + seconds  # type: ignore[method-assign]


class FakeEmbedders:
    """Hashes words into vectors.

    Attributes:
        calls: The backbones of each call.
        error: Raised by each call when set.
        loading: Backbones that are loaded only once `may_load` is set.
    """

    def __init__(self, loading: frozenset[str] = frozenset()) -> None:
        self.calls: list[frozenset[str]] = []
        self.error: Exception | None = None
        self.loading = loading
        self.may_load = asyncio.Event()
        self._embedder = HashingEmbedder(DIM)

    async def load(self, names: frozenset[str]) -> None:
        if names:
            await self.may_load.wait()
        if self.error is not None:
            raise self.error
        self.loading -= names

    async def embed(self, question: str, backbones: frozenset[str]) -> dict[str, NDArray[np.float32]]:
        self.calls.append(backbones)
        if self.error is not None:
            raise self.error
        return {name: self._embedder.encode_queries([question])[0] for name in sorted(backbones)}


class Preferring:
    """A policy that gives each arm its weight; all the same where every weight is 0."""

    kind = "preferring"
    resumes_exactly = True

    def __init__(self, **weights: float) -> None:
        self.weights = weights

    def probabilities(self, context: Context, arms: Sequence[str]) -> NDArray[np.float64]:
        del context
        p = np.array([self.weights[arm] for arm in arms])
        return p / p.sum() if p.any() else np.full(len(arms), 1 / len(arms))

    def learn(self, decision: Decision, reward: float) -> None:
        raise AssertionError(f"serving does not learn, least of all {reward} from {decision.id}")

    def save(self) -> bytes:
        return b""

    def load(self, state: bytes) -> "Preferring":
        del state
        return self


CONFIG: dict[str, Any] = {
    "backbones": {"tiny": {"model": f"hashing:{DIM}"}},
    "arms": {
        "none": {"kind": "none"},
        "bm25": {"kind": "bm25"},
        "dense": {"kind": "dense", "params": {"backbone": "tiny"}},
    },
    "hosts": ["service", "testserver"],
    "llm": {"engine": "scripted"},
    "policy": {"kind": "vowpal", "params": {"args": "--cb_explore_adf --epsilon 0.05"}},
    "reward": {
        "metrics": {
            "thumb": {"range": [-1, 1]},
            "right": {"type": "boolean"},
        },
        "complete": "any",
        "correction_time": "PT0S",
        "cost_weight": 0.1,
    },
    "limits": {"in_flight": 4, "question_chars": 1000, "body_bytes": 4096},
}
"""A whole configuration of three arms."""


class FakeGate:
    """A gate that says what it is told to.

    Attributes:
        asked: The version of each question.
        verdict: What it answers.
        error: Raised instead when set.
    """

    def __init__(self, promote: bool, *reasons: str, evaluation: int = 1) -> None:
        self.asked: list[int] = []
        self.verdict = {"promote": promote, "reasons": list(reasons), "evaluation": evaluation}
        self.error: Exception | None = None

    async def __call__(
        self, store: Store, configured: str, version: int, active: ActivePolicy, *, force: bool, clock: Any
    ) -> dict[str, Any]:
        del store, configured, active, force, clock
        self.asked.append(version)
        if self.error is not None:
            raise self.error
        return self.verdict


class Service:
    """One replica and a learner over a log on disk, without Ray.

    Attributes:
        folder: Where its log is.
        client: Speaks to the application without a network.
        replica: The state behind it.
        clock: Clock of the replica, of the learner and of the evaluations.
        learner: Learns when it is told to.
        arms: What the replica searches with.
        embedders: What it embeds with.
        generator: What it writes with.
        check: Looks at each response; None for no look.
    """

    check: ClassVar[Callable[[httpx.Response], None] | None] = None

    def __init__(
        self,
        folder: Path,
        generator: Generator | None = None,
        generators: Mapping[str, Generator] | None = None,
        reach: Callable[[], Awaitable[None]] | None = None,
        promotion_gate: Gate | None = None,
        loading: frozenset[str] = frozenset(),
        searched: FakeArms | None = None,
        clock: SteadyClock | None = None,
        **changes: Any,
    ) -> None:
        self.clock = clock or SteadyClock()
        document = {**CONFIG, "log_url": f"sqlite:///{folder / 'log.db'}", **changes}
        self.folder = folder
        self.config = parse(document)
        self.arms, self.embedders = searched or FakeArms(), FakeEmbedders(loading)
        self.generator = generator or base.ScriptedGenerator({}, default="The Danube does.")
        backends = Backends(
            self.arms,
            self.embedders,
            {**dict.fromkeys(self.config.models, self.generator), **(generators or {})},
            reach or reached,
        )
        self.replica = Replica(
            self.config,
            backends,
            clock=self.clock,
            telemetry=Telemetry(),
            gate=promotion_gate or verdict,
            choose_code=choose_code,
        )
        self.app = create_app(self.replica)
        self._store = Store(self.config.database_url, clock=self.clock)
        self._epoch = take_epoch(self._store, "test", 0.0)
        self.learner = self._learner(Recipe.from_config(self.config))
        self._log_at: float | None = None
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://service")
        self.client.event_hooks["response"].append(self._checked)
        for store in (self._store, self.replica.store):
            weakref.finalize(self, store.close)  # a test that asks nothing does not stop what it has started

    async def _checked(self, response: httpx.Response) -> None:
        if response.headers.get("content-type", "").startswith("application/json"):
            await response.aread()
        if self.check is not None:
            self.check(response)

    async def learn(self) -> None:
        """Learn what is new, as the recipe says that is active now, and serve it."""
        await asyncio.to_thread(self.step)
        await self.replica.refresh()

    async def settle(self) -> None:
        """Learn what is new, and let the wait time of all decisions pass."""
        await self.learn()
        await asyncio.to_thread(self.settled)
        await asyncio.to_thread(self.summarise)

    def summarise(self) -> None:
        """Write the summary that the console shows, as the learner does by itself."""
        write_summary(self.replica.store, self.config, self.clock())

    def settled(self) -> None:
        """Read the log as if the wait time had passed, until the next step: time itself cannot be moved."""
        rule = self.config.reward
        with self.replica.store.reading() as connection:
            self._log_at = read_position(connection, rule.join).log_at
        self._write_time(self._log_at + rule.wait_s + 60.0)

    def _write_time(self, log_at: float) -> None:
        move = sa.update(t.progress).where(t.progress.c.reader == self.config.reward.join)
        with self.replica.store.writing() as connection:
            connection.execute(move.values(log_at=log_at))

    def step(self) -> None:
        """Learn what is new, as the recipe says that is active now; the replica follows by itself."""
        recipe = active_recipe(self._store, self.config)
        if recipe != self.learner.recipe:
            self.learner = self._learner(recipe)
        if self._log_at is not None:
            self._write_time(self._log_at)
            self._log_at = None
        self.learner.step()

    async def refresh(self) -> None:
        """Follow the log at once, as the replica does by itself: keys, and what it serves."""
        await asyncio.to_thread(self.replica.keyring.refresh, self.replica.store)
        await self.replica.refresh()

    def close(self) -> None:
        """Close the log of the learner, where `running` does not."""
        self._store.close()

    def _learner(self, recipe: Recipe) -> Learner:
        arms, budget, guard = list(self.config.actions), self.config.budget, self.config.guard
        return Learner(self._store, recipe, arms, self._epoch, self.clock, budget=budget, guard=guard)

    @contextmanager
    def working(self) -> Iterator[None]:
        """Answer evaluations meanwhile, in a thread where `armwise.agent.hosts.JobsHost` has processes."""
        config = self.config
        with closing(Store(config.database_url, clock=self.clock)) as store:
            evaluate, clock = partial(evaluate_here, config), self.clock
            make = partial(Evaluations, store, digest_configuration(config), "test", evaluate, clock)
            jobs = Jobs({Work.EVALUATION: make}, 0.005, clock)
            try:
                yield
            finally:
                jobs.stop()

    @asynccontextmanager
    async def running(self, *, ready: bool = True) -> AsyncIterator["Service"]:
        """Start it, with a first version unless told otherwise, and stop it."""
        with closing(self._store):
            async with self.app.router.lifespan_context(self.app), self.client:
                if ready:
                    await self.learn()
                yield self
