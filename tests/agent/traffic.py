"""A busy replica in one event loop: real turns over arms that fail, hang, fill up and are switched off.

The turns, the draw and the policy are ours; stand-ins are only at the seams: arms, language model,
clock and log. Every decision is checked as it is logged, against what its arms were doing at that
moment; what can only be seen over many of them is left in columns for `tests.agent.draws`.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from armwise.agent.policies import Exploration, Policy, compute_served_distribution, sampling
from armwise.agent.policies.vowpal import VowpalWabbit
from armwise.agent.turn import (
    ArmHealth,
    ArmInfo,
    ArmScorer,
    Ask,
    Canary,
    Decider,
    LanguageModel,
    NoEligibleArmError,
    OverloadedError,
    RequestDocument,
    Serving,
    TurnError,
)
from armwise.agent.turn.steps import Draft
from armwise.arms.base import ArmError, Passage, Query, Retrieval
from armwise.arms.llm import Chunk, Generator, GeneratorError, Message, Prompt
from armwise.arms.llm.writing import DEFAULT
from armwise.feedback.events import Context, Decision, Execution, Mode, Status
from armwise.feedback.log import Receipt
from tests.agent.turns import make_decider, make_turns

ARMS = ("none", "bm25", "dense", "graph", "paid", "shaky")
INFO = {name: ArmInfo(features={"steps": float(i > 0), "hops": i / 8}) for i, name in enumerate(ARMS)}
FALLBACK = "bm25"
CAPS = {"graph": 4, "paid": 2}
FAILS = {"none": 0.0, "bm25": 0.02, "dense": 0.03, "graph": 0.05, "paid": 0.1, "shaky": 0.3}
"""Share of the searches of an arm that fail in good times."""

OUTAGE, OUTAGE_S, ARRIVAL_S = 0.9, 20.0, 0.01
"""Share that fails in bad times; how long these last; and the time from one question to the next."""

QUESTIONS = tuple(
    f"{asked} {what} {where}{mark}"
    for asked, mark in (("which", "?"), ("who crossed the", "?"), ("map of the", ""))
    for what in ("river", "bridge", "old city")
    for where in ("in Vienna", "of 1066", "near the sea", "and who wrote of it")
)
STATUSES = tuple(Status)
WORKERS = 24
"""Clients who ask at once."""

SHARES = (0.0, 0.1, 0.0, 0.5)
"""What the next version takes of the decisions beside each one, in turn."""

FOUND = {name: Retrieval((Passage(f"{name}-1", "title", "text", 1.0),), steps=1) for name in ARMS}
MESSAGES: tuple[Message, ...] = ({"role": "user", "content": "which river?"},)


def failing(arm: str, at: float) -> float:
    """Return the probability that a search of an arm fails if it begins at a time; each has its outages."""
    bad = (int(at / OUTAGE_S) + 5 * ARMS.index(arm)) % 17 == 0
    return OUTAGE if bad and FAILS[arm] else FAILS[arm]


def versions(n: int, seed: int) -> dict[int, Policy]:
    """Return policies that learned from 100, 200, 300, ... made-up rewards, by version."""
    rng = np.random.default_rng(seed)
    policy: Policy = VowpalWabbit()
    found = {}
    share = (1.0 / len(ARMS),) * len(ARMS)
    features = {name: info.features for name, info in INFO.items()}
    for version in range(1, n + 1):
        found[version] = policy = policy.load(policy.save())
        for _ in range(100):
            seen = Context(
                "?", {"has_mark": float(rng.integers(2)), "load": float(rng.integers(4))}, (), features
            )
            drawn = int(rng.integers(len(ARMS)))
            good = rng.random() < (0.9 if drawn == 1 + int(seen.features["load"]) else 0.4)
            policy.learn(Decision("?", seen, ARMS, share, ARMS[drawn], "uniform", 1), float(good))
    return found


class Writer(Generator):
    """A language model of one word, which fails now and then."""

    model = "writer"

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        await asyncio.sleep(0)
        yield Chunk("word")
        if prompt.seed == 0:
            raise GeneratorError("out of memory")
        yield Chunk(finish_reason="stop")

    async def close(self) -> None: ...


@dataclass(frozen=True)
class Wish:
    """What one client wants, of which arms, and whether it goes away before the end."""

    ask: Ask
    arms: tuple[str, ...]
    leaves: bool


SUBSETS = tuple(tuple(name for place, name in enumerate(ARMS) if bits >> place & 1) for bits in range(64))
BLOCK = 10_000
"""Clients whose wishes are thrown at once."""


def wishes(n: int, seed: int) -> Iterator[Wish]:
    """Yield what `n` clients want.

    Of a hundred, 4 name an arm, 16 exclude one, 10 list those allowed, 5 want it written out; 6 want
    the most probable arm, and 2 go away, whatever else they want.
    """
    rng = np.random.default_rng(seed)
    for first in range(0, n, BLOCK):
        dice = rng.integers(100, size=(BLOCK, 6)).tolist()
        for i, (kind, subset, question, load, greedy, leaves) in zip(range(first, n), dice, strict=False):
            arms: tuple[str, ...] = ARMS
            options: dict[str, Any] = {}
            if kind < 4:
                arms = (ARMS[subset % len(ARMS)],)
                options["forced"] = arms[0]
            elif kind < 20:
                arms = tuple(name for name in ARMS if name != ARMS[subset % len(ARMS)])
                options["excluded"] = frozenset({ARMS[subset % len(ARMS)]})
            elif kind < 30:
                arms = SUBSETS[subset % len(SUBSETS)] or ARMS
                options["allowed"] = frozenset(arms)
            ask = Ask(
                decision_id=str(i),
                question=QUESTIONS[question % len(QUESTIONS)],
                messages=MESSAGES if kind >= 95 else (),
                document=RequestDocument(seed=question),
                explore=greedy >= 6,
                context={"load": load % 4},
                **options,
            )
            yield Wish(ask, arms, leaves < 2)


@dataclass
class Draws:
    """What the log says of each turn, as columns of shape (n,) unless they say otherwise.

    Arms, modes and statuses are numbers, -1 where there is none: a turn that was refused drew no arm.
    """

    p: NDArray[np.float64]  # shape (n, arms): 0 for an arm that was not eligible
    mask: NDArray[np.int64]  # one bit an eligible arm
    drawn: NDArray[np.int64]
    served: NDArray[np.int64]
    mode: NDArray[np.int64]
    status: NDArray[np.int64]
    version: NDArray[np.int64]
    percent: NDArray[np.int64]  # what a candidate had of it
    at: NDArray[np.float64]
    left: NDArray[np.bool_]  # whether the client went away, or tried to

    @classmethod
    def empty(cls, n: int) -> "Draws":
        whole = ("mask", "drawn", "served", "mode", "status", "version", "percent")
        return cls(
            p=np.zeros((n, len(ARMS))),
            at=np.zeros(n),
            left=np.zeros(n, dtype=np.bool_),
            **{name: np.full(n, -1, dtype=np.int64) for name in whole},
        )

    def of(self, rows: NDArray[np.bool_]) -> "Draws":
        """Return some of the turns."""
        return Draws(**{name: column[rows] for name, column in vars(self).items()})


MODES = tuple(Mode)
PLACE = {name: i for i, name in enumerate(ARMS)} | {None: -1}


@dataclass
class Traffic:
    """One replica and its clients.

    Args:
        n: Questions.
        seed: Of what the clients wish; the arms and the draws follow from the ids.
        make: Builds the decider; another one than ours shows that a lie is found.
        scorer: A router that looks at what the arms retrieve.
        policies: What is served, by version; one after the other.
        caps: Of the arms.
        recompute: Every how many decisions the distribution is computed again.
    """

    n: int
    seed: int
    make: Callable[..., Decider] = Decider
    scorer: ArmScorer | None = None
    policies: Mapping[int, Policy] = field(default_factory=lambda: versions(4, seed=1))
    caps: Mapping[str, int] = field(default_factory=lambda: CAPS)
    recompute: int = 1

    def __post_init__(self) -> None:
        self.now = 0.0
        self.draws = Draws.empty(self.n)
        self.wishes: dict[str, Wish] = {}  # of the turns under way
        self.able: dict[str, list[str]] = {}  # which arms could be drawn, when one was
        self.undecided: Counter[str] = Counter()
        self.recomputed = 0
        self.busy: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.copies = {v: policy.load(policy.save()) for v, policy in self.policies.items()}
        decider = make_decider(
            Serving(self.policies[1], 1, scorer=self.scorer),
            Exploration(0.1, 0.02),
            f"traffic-{self.seed}",
            clock=lambda: self.now,
            health=ArmHealth(caps=self.caps, clock=lambda: self.now),
            make=self._watched(),
        )
        models = {DEFAULT: LanguageModel(Writer())}
        self.loop = make_turns(INFO, decider, self.embed, self.search, self, models, fallback=FALLBACK)

    async def run(self, progress: Callable[[int], object] = lambda _: None) -> Draws:
        """Have all clients served, many at once; `progress` is told of every thousand that comes."""
        waiting = self._arrivals(progress)

        async def client() -> None:
            for wish in waiting:
                self.wishes[wish.ask.decision_id] = wish
                await (self._leaving(wish.ask) if wish.leaves else self._turn(wish.ask))
                del self.wishes[wish.ask.decision_id]

        await asyncio.gather(*(client() for _ in range(WORKERS)))
        await asyncio.sleep(0)  # the last of those who went away are being recorded
        return self.draws

    def _arrivals(self, progress: Callable[[int], object]) -> Iterator[Wish]:
        """Yield the clients as they come; arms are switched and versions published meanwhile."""
        rng = np.random.default_rng(self.seed + 1)
        for i, wish in enumerate(wishes(self.n, self.seed)):
            self.now += ARRIVAL_S
            if i % 700 == 0:
                off = ARMS[rng.integers(len(ARMS))] if rng.random() < 0.5 else None
                self.loop.arms = {name: replace(INFO[name], enabled=name != off) for name in ARMS}
            if i % 1000 == 0:
                self.loop.decider.serving = self._serving(i // 1000)
                progress(1000)
            yield wish

    def _serving(self, block: int) -> Serving:
        """Return what is served in a block of the clients: one version after the other, or two."""
        n = len(self.policies)
        version, candidate, share = 1 + block % n, 1 + (block + 1) % n, SHARES[block // n % len(SHARES)]
        canary = Canary(self.policies[candidate], candidate, share, self.scorer)
        return Serving(self.policies[version], version, (canary,) if share else (), self.scorer)

    async def _leaving(self, ask: Ask) -> None:
        task = asyncio.create_task(self._turn(ask))
        for _ in range(int(ask.decision_id) % 4):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()  # it had ended
        elif self.draws.drawn[int(ask.decision_id)] < 0:
            self.undecided["gone"] += 1

    async def _turn(self, ask: Ask) -> None:
        try:
            async for _event in self.loop.turn(ask):
                pass
        except TurnError:
            pass  # it is on record
        except OverloadedError:
            self.undecided["overloaded"] += 1
            able = self._able(self.wishes[ask.decision_id])
            assert not able or self.scorer, "an arm that could be drawn has room"
        except NoEligibleArmError:
            self.undecided["no eligible arm"] += 1
            assert not self._eligible(self.wishes[ask.decision_id])

    # -- what the loop is wired to ----------------------------------------------------------------

    async def embed(self, question: str, backbones: frozenset[str]) -> dict[str, Any]:
        del question
        return dict.fromkeys(backbones, np.ones(1, dtype=np.float32))

    async def search(self, arm: str, query: Query, k: int) -> Retrieval:
        del k
        chance = sampling.uniform_from(str(query.seed), arm)
        fails = chance < failing(arm, self.now)
        self.busy[arm] += 1
        self.most[arm] = max(self.most[arm], self.busy[arm])
        try:
            for _ in range(query.seed % 4):
                await asyncio.sleep(0)
        finally:
            self.busy[arm] -= 1
        if fails:
            raise ArmError("the index is gone") if query.seed % 2 else TimeoutError
        return FOUND[arm]

    def append(self, *facts: Decision | Execution) -> "asyncio.Future[list[Receipt]]":
        for fact in facts:
            if isinstance(fact, Decision):
                self._decided(int(fact.id), fact)
            else:
                self._executed(int(fact.decision_id), fact)
        future = asyncio.get_running_loop().create_future()
        future.set_result([Receipt(1)] * len(facts))
        return future

    def _watched(self) -> Callable[..., Decider]:
        """Return what makes the decider, which notes at each draw what could be drawn."""
        traffic = self

        class Watched(self.make):  # type: ignore[name-defined, misc]
            def decide(self, draft: Draft) -> Decision:
                name = draft.ask.decision_id
                traffic.able[name] = traffic._able(traffic.wishes[name])
                decision: Decision = super().decide(draft)
                return decision

        return Watched

    # -- what must hold of every row ----------------------------------------------------------------

    def _eligible(self, wish: Wish) -> list[str]:
        live = self.loop.arms
        return [name for name in wish.arms if live[name].enabled or name == wish.ask.forced]

    def _able(self, wish: Wish) -> list[str]:
        """Return the arms that may be drawn at this moment, by what the arms themselves see."""
        names = self._eligible(wish)
        names = [name for name in names if not self.loop.decider.health.is_open(name)] or names
        return [name for name in names if self.busy[name] < self.caps.get(name, WORKERS)]

    def _decided(self, i: int, fact: Decision) -> None:
        draws, arms, wish = self.draws, list(fact.arms), self.wishes[fact.id]
        assert draws.drawn[i] == -1, "one decision a turn"
        if self.scorer is None:
            assert arms == self.able.pop(fact.id), "exactly the arms that could be drawn have a probability"
        else:
            assert set(arms) <= set(wish.arms)
        places = [PLACE[name] for name in arms]
        draws.p[i, places] = fact.probabilities
        draws.mask[i] = sum(1 << place for place in places)
        draws.drawn[i] = PLACE[fact.drawn]
        draws.mode[i] = MODES.index(fact.mode)
        draws.version[i] = fact.version
        draws.percent[i] = round(100 * fact.share)
        draws.at[i] = fact.decided_at
        draws.left[i] = wish.leaves
        if i % self.recompute == 0:
            seen, floor = fact.context, fact.floor or 0.0
            again = compute_served_distribution(self.copies[fact.version], seen, arms, floor)
            if fact.share:
                beside = compute_served_distribution(
                    self.copies[fact.candidate], fact.context, arms, (fact.floor or 0.0)
                )
                again = sampling.mix_canary(again, beside, fact.share)
            assert tuple(again.tolist()) == fact.probabilities
            self.recomputed += 1

    def _executed(self, i: int, fact: Execution) -> None:
        draws = self.draws
        assert draws.drawn[i] >= 0, "a decision comes before its execution"
        assert draws.status[i] == -1, "one execution a decision"
        draws.served[i] = PLACE[fact.served]
        draws.status[i] = STATUSES.index(fact.status)


__all__ = ["ARMS", "FALLBACK", "MODES", "STATUSES", "Draws", "Traffic", "failing", "versions"]
