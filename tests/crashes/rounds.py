"""One service under traffic, killed again and again: what is killed, where, and how it comes back."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from tests.crashes.audit import Verdict
from tests.crashes.children import CrashError, Keeper, configuration, free_port, learn, serve
from tests.crashes.points import LEARNER, POINTS, REPLICA, Point, Trip
from tests.crashes.service import Kill, Service
from tests.postgres import Server

DATABASE, PROXY, ALL = "database server", "HTTP proxy", "everything"
VICTIMS = {REPLICA: "ingress replica", LEARNER: "learner", DATABASE: DATABASE, PROXY: PROXY, ALL: ALL}
"""What is killed, as the table calls it."""

ANY_MOMENT = "any moment"
"""Stands for a step where it was left to chance what was under way."""


@dataclass(frozen=True, slots=True)
class Case:
    """What is killed, and when.

    Attributes:
        victim: One of `VICTIMS`.
        point: What a process has just reached.
        passes: At which pass.
    """

    victim: str
    point: Point
    passes: int


def plan(kills: int, seed: int, *, database: bool) -> list[Case]:
    """Return cases that meet every point with every victim equally often, in a random order.

    Args:
        kills: How many.
        seed: Of the order, and of the pass at which each kill comes.
        database: Whether there is a database server that could be killed.
    """
    rng = np.random.default_rng(seed)
    possible = [
        (victim, point)
        for point in POINTS
        for victim in (point.process, ALL, *([DATABASE] if database else []))
    ]
    cases: list[Case] = []
    while len(cases) < kills:
        for index in rng.permutation(len(possible)):
            victim, point = possible[index]
            cases.append(Case(victim, point, int(rng.integers(1, point.most + 1))))
    return cases[:kills]


class Stage(Service):
    """A service of two processes and a database; made by `stage`.

    Args:
        document: Its settings.
        folder: Where its processes write what goes wrong.
        server: The database server; None for SQLite.
        clients: How many ask at once.
        seed: Draws what they ask.
        sabotage: How one of its processes is broken, by a name of `SABOTAGE`; empty for not at all.

    Attributes:
        keepers: Of its processes, by name.
    """

    def __init__(
        self,
        document: dict[str, Any],
        folder: Path,
        server: Server | None,
        *,
        clients: int,
        seed: int,
        sabotage: str = "",
    ) -> None:
        port = free_port()
        super().__init__(document, [f"http://127.0.0.1:{port}"], clients, seed)
        self._server = server
        self.keepers = {
            REPLICA: Keeper(serve, folder / "replica.log", document, sabotage, port),
            LEARNER: Keeper(learn, folder / "learner.log", document, sabotage),
        }

    def strike(self, case: Case) -> Kill:
        """Let one case happen, and wait until the service is back by itself. Raises CrashError."""
        point, keeper = case.point, self.keepers[case.point.process]
        itself = case.victim == point.process
        if point.idle:
            self.asked()  # without feedback: time has to close it
            self.traffic.pause()
        keeper.arm(Trip(point.name, case.passes, itself), starting=point.starting)
        try:
            began = keeper.reached()
        except CrashError as error:
            self.check()
            raise CrashError(f"{case}: {error}") from None
        if point.idle:
            self.traffic.go_on()
        if not itself:
            self._kill(case.victim, keeper)
        return self.recovered(Kill(VICTIMS[case.victim], point.step, point.name), began)

    def _kill(self, victim: str, waiting: Keeper) -> None:
        """Kill the database server, or everything; only the server does not restart by itself."""
        if victim == ALL:
            for keeper in self.keepers.values():
                keeper.kill()
        if self._server is not None:
            self._server.kill()
        waiting.go_on()
        if self._server is not None:
            self._server.start()

    @override
    def check(self) -> None:
        super().check()
        for keeper in self.keepers.values():
            keeper.check()

    def end(self) -> Verdict:
        """Let the clients end, kill everything once more, and check the log. Raises CrashError."""
        self.quiet()
        self.close()
        if self._server is not None:
            self._server.kill()
            self._server.start()
        return self.audited()

    @override
    def close(self) -> None:
        for keeper in self.keepers.values():
            keeper.end()
        super().close()

    @property
    @override
    def output(self) -> str:
        return "\n".join(f"-- {name}\n{keeper.output}" for name, keeper in self.keepers.items())

    @property
    def stranded(self) -> int:
        """Processes that ended without being killed, and were started again as all others are."""
        return sum(len(keeper.unplanned) for keeper in self.keepers.values())


@contextmanager
def stage(
    url: str,
    args: str,
    folder: Path,
    server: Server | None = None,
    *,
    clients: int = 3,
    seed: int = 0,
    sabotage: str = "",
) -> Iterator[Stage]:
    """Run a service with clients over an empty log.

    Args:
        url: The log.
        args: Of the policy.
        folder: Where its processes write what goes wrong.
        server: The database server of the log, if it has one.
        clients: How many ask at once.
        seed: Draws what they ask.
        sabotage: How one of its processes is broken; empty for not at all.
    """
    document = configuration(url, args)
    made = Stage(document, folder, server, clients=clients, seed=seed, sabotage=sabotage)
    try:
        made.begin()
        yield made
    finally:
        made.close()
