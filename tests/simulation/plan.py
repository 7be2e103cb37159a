"""What happens in a world: talks of callers, acts of operators and faults, each at a time, drawn from a seed.

An event draws from a stream of its own, so that the others stay what they are where it is left out: the
shortest schedule of a failure is found by leaving out.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

BUSY_S = 6.0
"""Seconds in which events begin."""

BURSTS, IN_BURST, APART_S = 3, 0.7, 0.02
"""Moments at which much happens at once, the share of the events there, and how far these are apart."""


class Kind(StrEnum):
    """What an event is."""

    TALK = "talk"
    TWINS = "two ask under one key"
    CROWD = "many requests of a limited key"
    STORM = "many ask at once"
    SWITCH = "switch an arm"
    REPLACE = "replace the arms"
    PROMOTE = "promote"
    ROLLBACK = "roll back"
    CANARY = "canary"
    TRAIN = "train a candidate"
    ERASE = "erase"
    EVALUATE = "evaluate"
    KILL = "kill"
    KILL_SOON = "kill at a step"
    KILL_COMMIT = "kill at a commit"
    SECOND = "a second process starts beside the first"
    POWER = "power fails"
    DISK = "disk"
    CLOCK = "clock"
    UPSTREAM = "upstream"
    LINK = "link"
    STALL = "stall"


FAULTS = (
    *(Kind.KILL, Kind.KILL_SOON, Kind.KILL_COMMIT, Kind.SECOND, Kind.POWER, Kind.DISK, Kind.CLOCK),
    *(Kind.UPSTREAM, Kind.LINK, Kind.STALL),
)
ACTS = (Kind.SWITCH, Kind.REPLACE, Kind.PROMOTE, Kind.ROLLBACK, Kind.CANARY, Kind.TRAIN, Kind.ERASE)
EVALUATING = 0.2
"""Share of the worlds in which evaluations are asked for, and a worker runs them."""


PACED, STORMY = 0.3, 0.1
"""Shares of the worlds with a budget, and with more requests than may be."""

STORM = 30
"""Requests of a storm."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happens.

    Attributes:
        number: Place in the plan, which names the stream of random numbers.
        at: Seconds from the beginning.
        settings: Further choices, by name.
    """

    number: int
    at: float
    kind: Kind
    settings: dict[str, Any] = field(default_factory=dict)

    def stream(self, seed: int) -> random.Random:
        """Return its random numbers."""
        return random.Random(f"{seed}/event {self.number}")

    def __str__(self) -> str:
        """Return it as a line."""
        chosen = ", ".join(f"{name} {value}" for name, value in self.settings.items())
        return f"{self.at:6.2f} s  #{self.number:<3} {self.kind}{chosen and ': '}{chosen}"


@dataclass(frozen=True, slots=True)
class Plan:
    """A world before it begins.

    Attributes:
        seed: Number of the world.
        replicas: Number of replicas.
        together: Whether one process does everything.
        at_once: Whether decisions are learned soon after their first value, and else after their wait time.
        remote: Whether a link lies before the log.
        paced: Whether the mean cost of a request has a ceiling.
        events: In order of time.
    """

    seed: int
    replicas: int
    together: bool
    at_once: bool
    remote: bool
    paced: bool
    events: tuple[Event, ...]

    @property
    def evaluates(self) -> bool:
        """Whether evaluations are asked for."""
        return any(event.kind is Kind.EVALUATE for event in self.events)

    def with_events(self, events: Sequence[Event]) -> "Plan":
        """Return the same world with other events."""
        return replace(self, events=tuple(events))

    def __str__(self) -> str:
        """Return it as lines."""
        form = "one process" if self.together else f"{self.replicas} replicas and a learner"
        learned = "after the first value" if self.at_once else "after the wait time"
        log = "behind a link" if self.remote else "on a disk of the machine"
        more = ", a budget" * self.paced
        head = f"seed {self.seed}: {form}, learned {learned}, log {log}{more}"
        return "\n".join([head, *map(str, self.events)])


def draw(seed: int) -> Plan:
    """Return the plan of a seed."""
    rng = random.Random(f"{seed}/plan")
    together = rng.random() < 0.4
    remote = not together and rng.random() < 0.5
    kinds = [Kind.TALK] * rng.randint(2, 6) + [Kind.TWINS] * rng.choice((0, 0, 1, 2))
    kinds += [Kind.CROWD] * rng.choice((0, 0, 0, 1))
    kinds += [Kind.STORM] * (rng.random() < STORMY)
    kinds += [Kind.ERASE] * rng.choice((0, 0, 1))
    if rng.random() < EVALUATING:
        kinds += [Kind.EVALUATE] * rng.randint(1, 3)
    kinds += rng.choices(ACTS, k=rng.randint(0, 3))
    kinds += rng.choices((*FAULTS, Kind.KILL_COMMIT, Kind.KILL_COMMIT), k=rng.choice((0, 1, 1, 2, 3, 5)))
    events, bursts = [], [rng.uniform(0.0, BUSY_S) for _ in range(BURSTS)]
    for kind in kinds:
        at = rng.uniform(0.0, BUSY_S)
        if rng.random() < IN_BURST:
            at = rng.choice(bursts) + rng.expovariate(1.0 / APART_S)
        events.append(Event(0, at, kind, _settle(kind, rng, remote=remote)))
    events.sort(key=lambda event: event.at)
    numbered = tuple(replace(event, number=number) for number, event in enumerate(events, 1))
    return Plan(
        seed,
        replicas=1 if together else rng.randint(1, 2),
        together=together,
        at_once=rng.random() < 0.5,
        remote=remote,
        paced=rng.random() < PACED,
        events=numbered,
    )


def _settle(kind: Kind, rng: random.Random, *, remote: bool) -> dict[str, Any]:
    """Return the further choices of an event."""
    choose = _CHOICES.get(kind)
    chosen = {} if choose is None else choose(rng)
    if kind is Kind.LINK and not remote:
        chosen["losses"] = 0.0  # it is a slow disk
    return chosen


def _choose_kill(rng: random.Random) -> dict[str, Any]:
    return {"part": rng.randrange(3), "commits": rng.randint(1, 6), "done": rng.random() < 0.5}


def _choose_link(rng: random.Random) -> dict[str, Any]:
    delay_s, losses = rng.choice((0.005, 0.05, 0.3)), rng.choice((0.0, 0.05, 0.3))
    return {"delay_s": delay_s, "losses": losses, "lasts_s": rng.uniform(0.5, 4.0)}


_CHOICES: dict[Kind, Callable[[random.Random], dict[str, Any]]] = {
    Kind.KILL: lambda rng: {"part": rng.randrange(3)},
    Kind.SECOND: lambda rng: {"part": -rng.randint(1, 2)},  # mostly what must be there once: the learner
    Kind.KILL_COMMIT: _choose_kill,
    Kind.KILL_SOON: lambda rng: {"part": rng.randrange(3), "steps": int(rng.expovariate(1 / 40)) + 1},
    Kind.DISK: lambda rng: {
        "fault": rng.choice(("full", "read-only", "broken")),
        "lasts_s": rng.uniform(0.2, 5.0),
    },
    Kind.CLOCK: lambda rng: {"part": rng.randrange(3), "ahead_s": rng.choice((-30.0, -3.0, 0.5, 3.0, 30.0))},
    Kind.UPSTREAM: lambda rng: {"bad": rng.choice((0.2, 0.6, 1.0)), "lasts_s": rng.uniform(1.0, 6.0)},
    Kind.LINK: _choose_link,
    Kind.STALL: lambda rng: {"part": rng.randrange(3), "lasts_s": rng.choice((1.0, 6.0, 15.0))},
    Kind.SWITCH: lambda rng: {"arm": rng.choice(("bm25", "dense")), "enabled": rng.random() < 0.5},
    Kind.TRAIN: lambda rng: {"kind": rng.choice(("linucb", "epsilon_greedy")), "anew": rng.random() < 0.5},
    Kind.CANARY: lambda rng: {"share": rng.choice((0.0, 0.1, 0.5))},
}
