"""Run the world of a plan, and check what is left of it."""

import contextlib
import gc
import logging
import random
import sqlite3
import sys
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from armwise.agent.config import AppConfig, parse
from armwise.agent.learning import verify_states
from armwise.feedback.clock import GRACE_S
from armwise.feedback.drift import Monitor
from armwise.feedback.log import Store
from armwise.feedback.log.chain import verify_chain
from armwise.feedback.registry import KeyLimits, KeySettings, keys, versions
from armwise.feedback.registry.jobs import LEASE_S
from armwise.feedback.training_log import read_learned_examples
from tests.simulation import connections, disk, laws
from tests.simulation.callers import LIMIT, LIMITED, Callers
from tests.simulation.disk import DRIVER, Disk, File
from tests.simulation.history import (
    FOLLOWED_S,
    TABLES,
    Answered,
    Fault,
    History,
    Rule,
    Tables,
    find_disobeyed,
    find_faults,
    find_lost_evaluations,
    find_other_alarms,
    find_other_draws,
    find_other_prices,
    find_wrong_prices,
    parse_rows,
)
from tests.simulation.plan import FAULTS, Event, Kind, Plan
from tests.simulation.scheduler import EPOCH, WORLD, Process, StuckError, World
from tests.simulation.service import (
    AGGREGATION,
    CEILING,
    CORRECTION_S,
    IN_FLIGHT,
    INTERVAL_S,
    MEANS,
    WAIT_S,
    Part,
    Service,
    make_document,
)

REMOTE_S = 0.002
"""Usual time of a statement where the log is behind a link, seconds."""

MOST_THREADS = 24
"""Most threads of a process at once: requests of storms wait to be refused, and not for a thread."""

CALM_S = 60.0
"""Seconds within which everything answers again after the last fault."""


@dataclass(slots=True)
class Outcome:
    """What came of a world.

    Attributes:
        plan: The plan of the world.
        faults: What is wrong.
        seconds: How long it lasted, by its clock.
        steps: Choices of the scheduler.
        digest: Digest of all choices, and of the rows at the end: the same for the same plan.
        counts: What it did, by name.
        trace: What happened, for people.
    """

    plan: Plan
    faults: list[Fault]
    seconds: float
    steps: int
    digest: str
    counts: dict[str, int] = field(default_factory=dict)
    trace: list[str] = field(default_factory=list)


SALTED = ("salt", "seal", "chain")
"""Columns that follow from random salts, for which the first world of a process draws other numbers."""


@dataclass(frozen=True, slots=True)
class Image:
    """The log before the first decision, under the laws, and the keys in it."""

    files: Mapping[str, bytes]
    keys: Mapping[str, str]
    public: Mapping[str, str]
    url: str


@cache
def make_image() -> Image:
    """Return a log with the keys of two tenants and of an operator."""
    url = f"sqlite:///{tempfile.mkdtemp()}/log.db"  # our code makes its folder on the real disk
    with running(World(0), {}) as (world, files):
        store = Store(url)
        settings = {
            "red": KeySettings("red", ("decide", "feedback", "read"), "red"),
            "blue": KeySettings("blue", ("decide", "feedback", "read"), "blue"),
            LIMITED: KeySettings(
                LIMITED, ("decide", "feedback", "read"), LIMITED, limits=KeyLimits(rpm_limit=LIMIT)
            ),
            "operator": KeySettings("operator", ("admin",), source="operator"),
        }
        made = {name: keys.create(store, setting, EPOCH + world.now) for name, setting in settings.items()}
        store.close()
        with contextlib.closing(sqlite3.connect(find_path(url), timeout=0, isolation_level=None)) as log:
            laws.enact(log)
        content = {path: bytes(file.data) for path, file in files.files.items()}
    secrets = {name: secret for name, (_, secret) in made.items()}
    return Image(content, secrets, {name: key.public_id for name, (key, _) in made.items()}, url)


def find_path(url: str) -> Path:
    """Return the file of a log."""
    return Path(url.removeprefix("sqlite:///"))


@contextlib.contextmanager
def running(world: World, files: Mapping[str, bytes]) -> Iterator[tuple[World, Disk]]:
    """Let a world be the one that runs, over a disk with some files."""
    seed = world.random_bytes.random()
    here = DRIVER.disk = Disk(random.Random(f"{seed}/disk"), lambda: world.process, lambda: EPOCH + world.now)
    here.files = {path: File(bytearray(data), bytearray(data)) for path, data in files.items()}
    DRIVER.error = None
    WORLD.append(world)
    connections.LINK.append(connections.Link(random.Random(f"{seed}/link")))
    try:
        yield world, here
    finally:
        for process in world.processes:
            here.kill(process)
        world.end()
        WORLD.clear()
        connections.LINK.clear()
        connections.OPENED.clear()


@cache
def make_config(*, at_once: bool, paced: bool) -> AppConfig:
    """Return the configuration of a world."""
    return parse(make_document(make_image().url, at_once=at_once, paced=paced))


class Simulation:
    """One world.

    Args:
        plan: The plan of the world.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.image = make_image()
        self._config = make_config(at_once=plan.at_once, paced=plan.paced)
        self.history = History()
        self._path = find_path(self._config.database_url)
        self._broken: list[Fault] = []
        self._reader: sqlite3.Connection | None = None
        self._rows = 0  # checksum of the tables at the end
        self._troubled_until = 0.0  # until when a replica may have been unable to follow the log
        self._calm_from: list[float] = []  # moments from which on every replica can
        self._asides = random.Random(f"{plan.seed}/asides")

    def run(self) -> Outcome:
        """Run it to its end, and return what came of it."""
        plan = self.plan
        with _quiet(), running(World(plan.seed), self.image.files) as (world, here):
            self._world, self._disk = world, here
            self._link = connections.LINK[-1]
            self._usual_delay_s = self._link.delay_s = REMOTE_S if plan.remote else 0.0
            self._service = Service(
                *(world, self._config, plan.replicas),
                together=plan.together,
                evaluates=plan.evaluates,
                rng=random.Random(f"{plan.seed}/upstream"),
                kill=self._kill,
            )
            clocks_agree = not any(event.kind is Kind.CLOCK for event in plan.events)
            self._callers = Callers(
                *(world, self._service, self.history, self.image.keys, self.image.public),
                *(self._look, clocks_agree),
            )
            try:
                self._live()
            except (StuckError, disk.NoLibraryError) as error:
                self._broken.append(Fault("stuck", str(error)))
            trace = [f"{at:9.3f} {who:14} {what}" for at, who, what in world.trace]
            counts = {
                "answers": len(self.history.answered),
                "feedback": len(self.history.kept),
                "starts": sum(part.starts for part in self._service.parts),
                "erasures": sum(one.done for one in self.history.erased),
            }
            faults = self._broken or self._find_faults()
            digest = f"{world.digest:08x}{self._rows:08x}"
            return Outcome(plan, faults, world.now, world.steps, digest, counts, trace)

    # -- what happens ------------------------------------------------------------------------------

    def _live(self) -> None:
        world, service = self._world, self._service
        service.start()
        for event in self.plan.events:
            world.start(world.outside, f"event {event.number}", lambda event=event: self._happen(event))
        self._callers.unfinished = sum(event.kind not in FAULTS for event in self.plan.events)
        self._pending_faults = sum(event.kind in FAULTS for event in self.plan.events)
        world.run(lambda: not self._callers.unfinished and not self._pending_faults)
        self._calm_down()
        done: list[bool] = []
        world.start(world.outside, "end", lambda: done.append(self._come_to_rest()))
        world.run(lambda: bool(done))
        if not done[0]:
            self._broken.append(Fault("stuck", f"not everything answers {CALM_S:g} s after the last fault"))

    def _happen(self, event: Event) -> None:
        self._world.sleep(event.at)
        self._world.note(f"event {event}")
        if event.kind not in FAULTS:
            self._callers.act(event, self.plan.seed)
            return
        try:
            self._break(event)
        finally:
            self._pending_faults -= 1
            self._troubled_until = self._world.now

    def _part(self, event: Event) -> Part:
        parts = self._service.parts
        return parts[event.settings["part"] % len(parts)]

    def _break(self, event: Event) -> None:
        """Do what a fault says, and wait until it is over."""
        match event.kind:
            case Kind.KILL | Kind.KILL_SOON | Kind.KILL_COMMIT | Kind.SECOND | Kind.STALL | Kind.CLOCK:
                self._break_part(event.kind, self._part(event), event.settings)
            case Kind.POWER:
                self._kill_all()
                self._reader = None
                self._disk.kill(self._world.outside)
                self._disk.lose_power()
            case _:
                self._break_around(event.kind, **event.settings)

    def _break_part(self, kind: Kind, part: Part, settings: Mapping[str, Any]) -> None:
        """Do something to a process."""
        world, process = self._world, part.process
        match kind:
            case Kind.KILL:
                part.die()
            case Kind.KILL_SOON:
                at = world.steps + settings["steps"]
                while world.steps < at:
                    world.pause()
                part.die()
            case Kind.KILL_COMMIT:
                self._kill_at_commit(part, settings["commits"], done=settings["done"])
            case Kind.SECOND:
                part.start_beside()
            case Kind.CLOCK:
                part.ahead_s = process.ahead_s = settings["ahead_s"]
            case Kind.STALL:
                world.stall(process)
                world.sleep(settings["lasts_s"])
                world.go_on(process)

    def _break_around(self, kind: Kind, *, lasts_s: float, **settings: Any) -> None:
        """Do something to what is around the processes, for a while."""
        match kind:
            case Kind.DISK:
                self._disk.fault = disk.Fault(settings["fault"])
                self._world.sleep(lasts_s)
                self._disk.fault = disk.Fault.NONE
            case Kind.UPSTREAM:
                self._service.upstream.bad = settings["bad"]
                self._world.sleep(lasts_s)
                self._service.upstream.bad = 0.0
            case Kind.LINK:
                self._link.delay_s, self._link.losses = settings["delay_s"], settings["losses"]
                self._world.sleep(lasts_s)
                self._link.delay_s, self._link.losses = self._usual_delay_s, 0.0

    def _kill_at_commit(self, part: Part, commits: int, *, done: bool) -> None:
        """Kill the process of a part before or after a commit, counted from now."""
        process, left = part.process, commits

        def count(is_done: bool) -> None:
            nonlocal left
            left -= is_done is done
            if not left:
                self._kill(process)

        process.at_commit = count

    def _kill_all(self) -> None:
        for process in [*self._world.processes]:
            self._kill(process)

    def _kill(self, process: Process) -> None:
        if process.alive:
            self._world.note(f"{process} dies")
            self._disk.kill(process)
        self._world.kill(process)

    def _calm_down(self) -> None:
        """End every fault; clocks are right again."""
        self._disk.fault, self._link.losses = disk.Fault.NONE, 0.0
        self._service.upstream.bad = 0.0
        for part in self._service.parts:
            part.ahead_s = part.process.ahead_s = 0.0
            part.process.at_commit = None
        self._world.note("calm")
        self._calm_from.append(self._troubled_until)

    def _come_to_rest(self) -> bool:
        """Ask each replica until it answers, and wait until all is learned; return whether it was in time."""
        world = self._world
        deadline = world.now + CALM_S
        for number, part in enumerate(self._service.replicas):
            if not self._answers(part, f"end{number}", deadline):
                return False
        world.now += WAIT_S + GRACE_S + 1.0  # the machine was asleep
        self._calm_from.append(world.now)
        pins = any(change.version is not None for change in self.history.changes)
        if pins or self.plan.paced:
            world.sleep(FOLLOWED_S + 1.0)  # from now on they must follow
        for number, part in enumerate(self._service.replicas):
            if not self._answers(part, f"last{number}", world.now + CALM_S):
                return False
        self._verify()
        deadline = world.now + CALM_S
        while not self._all_is_read():
            if world.now > deadline:
                return False
            world.sleep(1.0)
        world.sleep(2 * INTERVAL_S)  # what was read is learned, and alarms are raised
        return self._all_are_evaluated()

    def _all_are_evaluated(self) -> bool:
        """Wait until every evaluation has ended; that of a dead worker goes on after its lease."""
        world = self._world
        if not self.plan.evaluates:
            return True
        deadline = world.now + 2 * LEASE_S
        sql = "SELECT count(*) FROM jobs WHERE kind = 'evaluation' AND status IN ('queued', 'running')"
        while world.now < deadline:
            if not self._ask(sql)[0]:
                return True
            world.now += 10.0  # the machine sleeps, and wakes for a moment
            world.sleep(3.0)
        return False

    def _verify(self) -> None:
        """Let the service compute some decisions again."""
        answered = sorted({answer.id for answer in self.history.answered})
        for name in random.Random(self.plan.seed).sample(answered, min(2, len(answered))):
            part = self._service.replicas[0]
            response = self._callers.send(part, "GET", f"/v1/decisions/{name}/verify", key="operator")
            if response is None or response.status != 200 or not response.document["verified"]:
                found = "nothing" if response is None else f"{response.status} {response.body[:400]!r}"
                self._broken.append(Fault("propensity", f"{name} was verified with {found}"))

    def _rebuild(self, config: AppConfig) -> Iterator[Fault]:
        """Fold the log from its first fact, learn it again, and compare every state with what is stored."""
        with contextlib.closing(Store(config.database_url, config.reward.join)) as store:
            report = verify_states(store, config, lambda *_: None, every=True)
        for state in report.states:
            if not state.equal:
                yield Fault("rebuilt", str(state))

    def _fold(self, config: AppConfig) -> Iterator[Fault]:
        """Fold the chain of the log again, and compare it with what the learner and the versions have."""
        with contextlib.closing(Store(config.database_url, config.reward.join)) as store:
            report = verify_chain(store, versions.list_heads(store), lambda *_: None)
        yield from (Fault("chain", change) for change in report.changes)

    def _detect(self, config: AppConfig) -> Iterator[tuple[str, int]]:
        """Read the training log in one go, and yield subject and position of each change."""
        rule, monitor = config.reward, Monitor(config.reward)
        with contextlib.closing(Store(config.database_url, rule.join)) as store:
            for example in read_learned_examples(store, rule):
                reward = rule.compute_reward(example)
                assert reward is not None
                if (change := monitor.see(example, reward)) is not None:
                    yield change.subject, change.example_seq

    def _all_is_read(self) -> bool:
        """Whether the learners have read all facts, and all costs since the first price."""
        read = "SELECT log_seq FROM progress"
        facts = f"SELECT (SELECT seq FROM log) = coalesce(({read}), 0)"
        costs = (
            "SELECT count(*) = 0 OR (SELECT max(seq) FROM executions) <= max(document ->> 'log_seq') "
            "FROM operations WHERE kind = 'price'"
        )
        return all(self._ask(sql)[0] for sql in (facts, costs))

    def _answers(self, part: Part, name: str, deadline: float) -> bool:
        world = self._world
        begun = world.now
        while world.now < deadline:
            body = {"query": "is anybody there?", "model": "auto"}
            headers = {"idempotency-key": name}
            response = self._callers.send(part, "POST", "/v1/retrieve", body, key="operator", headers=headers)
            if response is not None and response.status == 200:
                told = {"policy_version": response.document["agent"]["policy_version"]}
                self.history.answered.append(Answered(name, told, begun=begun, at=world.now))
                return True
            world.sleep(0.5)
        return False

    # -- what is checked ---------------------------------------------------------------------------

    def _look(self, answered: Answered) -> None:
        """Check at once that an answered decision is in the log: what is only queued would be missing."""
        (times,) = self._ask("SELECT count(*) FROM decisions WHERE id = ?", answered.id)
        if times != 1:
            what = f"decision {answered.id} is in the log {times} times as it is answered"
            self._broken.append(Fault("lost", what))

    def _ask(self, sql: str, *values: object) -> tuple[Any, ...]:
        """Return the first row of a query."""
        with self._opened() as connection:
            row: tuple[Any, ...] = connection.execute(sql, values).fetchone()
        return row

    @contextlib.contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """Read the log beside everybody else."""
        current, self._world.current = self._world.current, None
        if self._reader is None:
            self._reader = sqlite3.connect(self._path, timeout=0, isolation_level=None)
        reader = self._reader
        try:
            yield reader
        finally:
            if self._asides.random() < 0.2:  # the last one that closes a log removes what is beside it
                reader.close()
                self._reader = None
            self._world.current = current

    def _find_faults(self) -> list[Fault]:
        faults = [*self._find_waiting()]
        tables = self._read_tables()
        self._kill_all()
        return faults + self._find_faults_in(tables)

    def _find_waiting(self) -> Iterator[Fault]:
        """Yield processes in which more was under way, or waited, than may."""
        for process in self._world.processes:
            calls = self._service.upstream.most.get(process, 0)
            if process.most_threads > MOST_THREADS or calls > IN_FLIGHT:
                what = f"{process} had {process.most_threads} threads, and {calls} calls, at once"
                yield Fault("waiting", what)

    def _read_tables(self) -> Tables:
        with self._opened() as connection:
            tables = read_tables(connection)
        repeated = {
            name: [{column: row[column] for column in row if column not in SALTED} for row in rows]
            for name, rows in tables.items()
        }
        self._rows = zlib.crc32(repr(repeated).encode(), self._rows)
        return tables

    def _find_faults_in(self, tables: Tables) -> list[Fault]:
        config, history = self._config, self.history
        rule = Rule(AGGREGATION, self.plan.at_once, GRACE_S, CORRECTION_S)
        faults = find_faults(history, tables, rule, settled=True)
        faults += find_disobeyed(history, self._calm_from)
        faults += find_lost_evaluations(history, tables, settled=True)
        faults += find_other_draws(tables, MEANS)
        if self.plan.paced:
            faults += find_wrong_prices(tables, CEILING)
            if not any(event.kind is Kind.CLOCK for event in self.plan.events):
                calm_from = [EPOCH + moment for moment in self._calm_from]
                faults += find_other_prices(tables, calm_from)
        faults += find_other_alarms(tables, self._detect(config))
        faults += self._rebuild(config)
        faults += self._fold(config)
        with self._opened() as connection:
            faults += [Fault("law", what) for what in laws.read_broken(connection)]
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        for erased in (one for one in history.erased if one.done):
            for word in erased.words:
                if found := self._disk.contains(word.encode()):
                    faults.append(Fault("erased", f"a text of {erased.decision_id} is in {', '.join(found)}"))
        return faults


def read_tables(connection: sqlite3.Connection) -> Tables:
    """Return every row of the tables that a history is compared with."""
    tables = {}
    for name in (*TABLES, "jobs", "operations"):
        cursor = connection.execute(f"SELECT * FROM {name}")
        tables[name] = parse_rows(name, [column[0] for column in cursor.description], cursor)
    for name, kind in (("prices", "price"), ("alarms", "alarm")):
        tables[name] = [{**row, **row["document"]} for row in tables["operations"] if row["kind"] == kind]
    return tables


class _Handler(logging.Handler):
    """Writes what the service logs into the trace of the world."""

    def emit(self, record: logging.LogRecord) -> None:
        if WORLD and not WORLD[-1].over:
            text = record.getMessage()
            if record.exc_info:
                text += "\n" + logging.Formatter().formatException(record.exc_info)
            WORLD[-1].note(f"{record.levelname.lower()}: {text}")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Log into the trace; collect no garbage, whose finalizers would run at any moment."""
    gc.disable()
    root = logging.getLogger()
    before, handlers = root.level, root.handlers
    root.handlers = [_Handler(logging.WARNING)]
    try:
        yield
    finally:
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None  # what is left of a loop that is closed
        gc.enable()
        gc.collect()
        sys.unraisablehook = hook
        root.handlers = handlers
        root.setLevel(before)


def simulate(plan: Plan) -> Outcome:
    """Run the world of a plan."""
    return Simulation(plan).run()
