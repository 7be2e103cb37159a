"""The processes that are killed: the real application and the real learner, started again whenever they end.

    Keeper ----- one process, and a new one in its place at once, as Ray's controller does it
      |-- serve  `create_app` over a `Replica`, spoken to by HTTP; arms and model answer in the process
      `-- learn  `JobsHost`

Children come from a fork server that has imported what they need: a start takes as long as the
product itself takes to start, not the two seconds that Python takes to import it.
"""

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, TypeVar

import uvicorn

from armwise.agent.api.errors import choose_code
from armwise.agent.api.routes import create_app
from armwise.agent.background import Work
from armwise.agent.config import parse
from armwise.agent.evaluation import verdict
from armwise.agent.hosts.jobs import JobsHost
from armwise.agent.serving import Backends, Replica, Telemetry
from armwise.arms.base import ArmError, Passage, Query, Retrieval
from armwise.arms.llm import base
from armwise.feedback.clock import SteadyClock
from tests.agent.fakes import CONFIG, FakeArms, FakeEmbedders
from tests.crashes.points import GO_ON, LEARNER, REPLICA, Trip, Tripwire
from tests.crashes.seams import SABOTAGE, watch_answers, watch_learner, watch_replica

T = TypeVar("T")

PATIENCE_S = 60.0
"""How long anything may take before it is called stuck."""

HEALTH_S = 0.2
"""Pause between two looks at the health of a child, which ends itself where that has failed."""

IN_VAIN = 25
"""Processes that may end by themselves one after the other before none is started any more."""

BAD_WORD = "unanswerable"
"""An arm fails on a question with this word."""

EXACT = "--cb_explore_adf --epsilon 0.1 -q sa"
BAGGED = "--cb_explore_adf --bag 3 --random_seed 7 -q sa"
"""A policy that resumes exactly from a checkpoint, and one whose log is replayed."""


class CrashError(Exception):
    """The matrix cannot go on; the message says what did not come to pass."""


def configuration(url: str, args: str) -> dict[str, Any]:
    """Return the settings of the service: short waits, so that decisions are closed while it is killed."""
    return {
        **CONFIG,
        "log_url": url,
        "policy": {"kind": "vowpal", "params": {"args": args}},
        "reward": {
            "metrics": {"thumb": {"range": [-1, 1]}, "right": {"type": "boolean"}},
            "complete": "any",
            "correction_time": "PT0.5S",
            "cost_weight": 0.1,
            "wait_time": "PT3S",
        },
        "limits": {"in_flight": 16, "arm_timeout_s": 0.5, "llm_timeout_s": 1.0},
    }


# -- in the child ------------------------------------------------------------------------------------------


def _begin(
    output: Path, wire: "Connection[Any, Any]", trip: Trip | None, process: str, sabotage: str
) -> Tripwire:
    """Make a forked process a child of ours."""
    end = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(end, 1)
    os.dup2(end, 2)
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # its parent ends it
    broken, break_it = SABOTAGE.get(sabotage, ("", None))
    if break_it is not None and broken == process:
        break_it()
    return Tripwire(wire, trip)


async def _find(query: Query, k: int) -> Retrieval:
    """Be an arm that fails on some questions."""
    if BAD_WORD in query.text:
        raise ArmError("the index has no such word")
    return Retrieval(tuple(Passage(f"dense-{i}", "", query.text, 1.0 / i) for i in range(1, k + 1)), steps=2)


def serve(
    output: Path, wire: "Connection[Any, Any]", trip: Trip | None, document: Any, sabotage: str, port: int
) -> None:
    """Be an ingress replica."""
    tripwire = _begin(output, wire, trip, REPLICA, sabotage)
    watch_replica(tripwire)
    generator = base.ScriptedGenerator({}, default="The Danube does, from the west to the east of it.")
    config, clock = parse(document), SteadyClock()
    backends = Backends(FakeArms({"dense": _find}), FakeEmbedders(), {"default": generator})
    replica = Replica(
        config, backends, clock=clock, telemetry=Telemetry(), gate=verdict, choose_code=choose_code
    )
    _end_when_ill(replica.check)
    app = watch_answers(create_app(replica), tripwire)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


def learn(
    output: Path, wire: "Connection[Any, Any]", trip: Trip | None, document: Any, sabotage: str
) -> None:
    """Be the learner."""
    watch_learner(_begin(output, wire, trip, LEARNER, sabotage))
    host = JobsHost(parse(document), [Work.LEARNER])
    _end_when_ill(host.check_health).join()


def _end_when_ill(check: Callable[[], None]) -> threading.Thread:
    """End this process once a check fails, as Ray Serve ends a replica."""

    def look() -> None:
        while True:
            try:
                check()
            except Exception:  # noqa: BLE001 - whatever it is, it ends the process
                import traceback

                traceback.print_exc()
                os._exit(1)
            time.sleep(HEALTH_S)

    thread = threading.Thread(target=look, name="health", daemon=True)
    thread.start()
    return thread


# -- in the parent -----------------------------------------------------------------------------------

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    ["armwise.agent.hosts.jobs", "armwise.agent.api.routes", "armwise.agent.policies.vowpal", "uvicorn"]
)

_processes = threading.Lock()
"""Held while a process is started or its exit code is read: a start reads those of all others, too."""


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def fresh_process(run: Callable[..., T], *arguments: object) -> T:
    """Return what a function returns in a process that has done nothing else."""
    with ProcessPoolExecutor(1, mp_context=_context) as pool:
        return pool.submit(run, *arguments).result()


class Keeper:
    """Keep one process running, whatever ends it.

    Args:
        run: What the process does.
        output: Where it writes what goes wrong.
        arguments: Further ones of `run`.

    Attributes:
        unplanned: Exit codes of processes that ended by themselves.
    """

    def __init__(self, run: Callable[..., None], output: Path, *arguments: object) -> None:
        self._run, self._output, self._arguments = run, output, arguments
        self._at_start: Trip | None = None  # for the next process
        self._reached: float | None = None
        self._ended = self._given_up = False
        self._news = threading.Condition()
        self.unplanned: list[int] = []
        self._start()
        self._thread = threading.Thread(target=self._keep, name="keeper", daemon=True)
        self._thread.start()

    def arm(self, trip: Trip, *, starting: bool = False) -> None:
        """Place a trip in the process that runs; or kill it, and place the trip in the next one."""
        with self._news:
            self._reached = None
            if starting:
                self._at_start = trip
                self._process.kill()
            else:
                self._tell(trip)

    def reached(self) -> float:
        """Wait until the trip was sprung, and return when that was. Raises CrashError."""
        with self._news:
            if not self._news.wait_for(lambda: self._reached is not None, PATIENCE_S):
                raise CrashError(f"no trip was sprung within {PATIENCE_S:g} s:\n{self.output}")
            assert self._reached is not None
            return self._reached

    def check(self) -> None:
        """Raise CrashError where no process is started any more, since so many ended by themselves."""
        if self._given_up:
            raise CrashError(f"{IN_VAIN} processes ended by themselves, one after the other:\n{self.output}")

    def go_on(self) -> None:
        """Let a process go on that waits at its point."""
        self._tell(GO_ON)

    def kill(self) -> None:
        """Kill the process, if it has not ended; another one takes its place."""
        with self._news:
            self._process.kill()

    def end(self) -> None:
        """Kill the process, and start no other."""
        with self._news:
            self._ended = True
            self._process.kill()
        self._thread.join()

    @property
    def pid(self) -> int:
        """The process that runs now."""
        return self._process.pid or 0

    @property
    def output(self) -> str:
        """The last lines that its processes wrote."""
        return self._output.read_text(errors="replace")[-3000:] if self._output.exists() else ""

    def _tell(self, what: object) -> None:
        with contextlib.suppress(OSError):  # it has just ended
            self._wire.send(what)

    def _start(self) -> None:
        self._wire, theirs = _context.Pipe()
        arguments = (self._output, theirs, self._at_start, *self._arguments)
        self._at_start = None
        self._process = _context.Process(target=self._run, args=arguments, daemon=True)
        with _processes:
            self._process.start()
        theirs.close()

    def _keep(self) -> None:
        in_vain = 0
        while True:
            with contextlib.suppress(EOFError, OSError):
                self._wire.recv()  # the last message of a process is there when it is gone
                with self._news:
                    self._reached = time.monotonic()
                    self._news.notify()
                continue
            wait([self._process.sentinel])
            with _processes:
                code = self._process.exitcode
            in_vain = 0 if code == -signal.SIGKILL else in_vain + 1
            if in_vain:
                self.unplanned.append(int(code or 0))
                time.sleep(HEALTH_S)
            with self._news:
                self._wire.close()
                self._given_up = in_vain >= IN_VAIN
                if self._ended or self._given_up:
                    return
                self._start()
