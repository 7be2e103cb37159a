"""Where a process can be killed, and what a child does there.

At the n-th pass of a point, the child ends itself with SIGKILL; or it reports to its parent, which kills
something else and lets it continue. A point `inserted` lies between the last row and the COMMIT, a point
`committed` between the COMMIT and the first line of ours that knows of it.
"""

import os
import signal
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

REPLICA, LEARNER = "replica", "learner"
"""The two processes."""

GO_ON = "go on"
"""The message that lets a child continue that waits at a point."""


@dataclass(frozen=True, slots=True)
class Point:
    """A place in a process.

    Attributes:
        name: What has just happened there, or is just about to.
        step: The step of the whole that it is in.
        process: Whose it is.
        most: The largest number of passes before the one that counts; few where it is rarely passed.
        starting: It is passed only while the process starts.
        idle: It is passed only while there are no requests.
    """

    name: str
    step: str
    process: str
    most: int = 20
    starting: bool = False
    idle: bool = False


POINTS = (
    Point("arm drawn", "decide", REPLICA),
    Point("decision inserted", "commit", REPLICA),
    Point("decision committed", "commit", REPLICA),
    Point("execution inserted", "answer", REPLICA),
    Point("execution committed", "answer", REPLICA),
    Point("answer begins", "answer", REPLICA),
    Point("answer half out", "answer", REPLICA, most=5),
    Point("feedback received", "feedback", REPLICA),
    Point("feedback inserted", "feedback", REPLICA),
    Point("feedback committed", "feedback", REPLICA),
    Point("receipt begins", "feedback", REPLICA),
    Point("facts joined", "join", LEARNER),
    Point("join inserted", "join", LEARNER, most=4),
    Point("join committed", "join", LEARNER, most=4),
    Point("tick inserted", "join", LEARNER, most=1, idle=True),
    Point("tick committed", "join", LEARNER, most=1, idle=True),
    Point("example learned", "learn", LEARNER, most=30),
    Point("state asked for", "checkpoint", LEARNER, most=4),
    Point("state saved", "checkpoint", LEARNER, most=4),
    Point("version inserted", "publish", LEARNER, most=4),
    Point("version committed", "publish", LEARNER, most=4),
    Point("version about to be served", "publish", REPLICA, most=4),
    Point("epoch inserted", "start", LEARNER, most=1, starting=True),
    Point("epoch committed", "start", LEARNER, most=1, starting=True),
    Point("state about to be resumed", "start", LEARNER, most=1, starting=True),
    Point("first version about to be served", "start", REPLICA, most=1, starting=True),
)
"""Every place, in the order of the way of the data."""

STEPS = tuple(dict.fromkeys(point.step for point in POINTS))


@dataclass(frozen=True, slots=True)
class Trip:
    """An order to a child.

    Attributes:
        point: Where.
        passes: At which pass, from 1.
        itself: Whether it kills itself there; else it says that it is there, and waits.
    """

    point: str
    passes: int
    itself: bool


class Tripwire:
    """What a child does at its points.

    Args:
        wire: To the parent; the child ends when it is closed.
        trip: The first order, for a point that is passed only while the child starts.
    """

    def __init__(self, wire: "Connection[Any, Any]", trip: Trip | None = None) -> None:
        self._wire = wire
        self._trip = trip
        self._passed = 0
        self._lock = threading.Lock()
        self._go_on = threading.Event()
        threading.Thread(target=self._listen, name="tripwire", daemon=True).start()

    def reach(self, *points: str) -> None:
        """Be at a point, or at several at once."""
        with self._lock:
            trip = self._trip
            if trip is None or trip.point not in points:
                return
            self._passed += 1
            if self._passed < trip.passes:
                return
            self._trip = None
            self._wire.send(trip.point)
            if trip.itself:
                os.kill(os.getpid(), signal.SIGKILL)
            self._go_on.clear()
        self._go_on.wait()

    def _listen(self) -> None:
        while True:
            try:
                message = self._wire.recv()
            except (EOFError, OSError):
                os._exit(1)
            if isinstance(message, Trip):
                with self._lock:
                    self._trip, self._passed = message, 0
            else:
                self._go_on.set()
