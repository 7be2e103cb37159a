"""Connections to the log: every statement is a moment at which others run, or a process dies.

The log is SQLite on the simulated disk. With a `Link` between, it is a server in all that our code can see of
one: statements take time, a connection is lost, and so is the acknowledgement of a commit that was done.
"""

import random
import sqlite3
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from armwise.feedback.log.backend import WAIT_S
from tests.simulation.disk import BUSY, DRIVER, IOERR
from tests.simulation.scheduler import WORLD

AGAIN_S = 0.01
"""Pause before a writer tries again."""


@dataclass(slots=True)
class Link:
    """What lies between the processes and the log.

    Attributes:
        rng: Draws the faults.
        delay_s: Mean time of a statement; 0: none passes.
        losses: Probability that a statement loses its connection, before or after it was done.
    """

    rng: random.Random
    delay_s: float = 0.0
    losses: float = 0.0


LINK: list[Link] = []
"""The link of the world that runs."""


def _lost() -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("server closed the connection unexpectedly")
    error.sqlite_errorcode = IOERR
    return error


OPENED: list[sqlite3.Connection] = []
"""The connections of a world. They end with it: a dead process must not close one, which would roll back."""


class SimulatedCursor(sqlite3.Cursor):
    """A cursor whose statements take turns."""

    def execute(self, sql: str, parameters: Any = ()) -> "SimulatedCursor":
        """Execute a statement."""
        return self._take_turn(super().execute, sql, parameters)

    def executemany(self, sql: str, parameters: Any) -> "SimulatedCursor":
        """Execute a statement for several rows."""
        return self._take_turn(super().executemany, sql, parameters)

    def _take_turn(self, run: Any, *arguments: Any) -> "SimulatedCursor":
        connection: SimulatedConnection = self.connection  # type: ignore[assignment]
        connection.take_turn(run, *arguments)
        return self


class SimulatedConnection(sqlite3.Connection):
    """A connection whose statements take turns, and which may be lost."""

    lost = False

    def cursor(self, factory: Any = SimulatedCursor) -> Any:
        """Return a cursor."""
        return super().cursor(factory)

    def commit(self) -> None:
        """Commit."""
        if self.in_transaction:
            self.take_turn(super().commit)

    def rollback(self) -> None:
        """Roll back; a lost connection has done so."""
        if DRIVER.disk is not None and not WORLD[-1].over:
            super().rollback()

    def take_turn(self, run: Any, *arguments: Any) -> None:
        """Let others run, then run a statement; wait for other writers by the scheduler."""
        world, link = WORLD[-1], LINK[-1]
        if world.current is None or arguments[:1] == ("BEGIN",):  # it begins with its first statement
            run(*arguments)
            return
        if link.delay_s:
            world.sleep(link.rng.expovariate(1.0 / link.delay_s))
        else:
            world.pause()
        self._may_be_lost(link)
        process, began = world.process, self.in_transaction
        commits = began and (not arguments or str(arguments[0]).startswith("COMMIT"))
        if commits and process.at_commit is not None:
            process.at_commit(False)
        self._run(run, arguments)
        if commits and not self.in_transaction:
            if process.at_commit is not None:
                process.at_commit(True)
            world.pause()  # committed, and nobody knows yet
            self._may_be_lost(link)

    def _run(self, run: Any, arguments: Any) -> None:
        world = WORLD[-1]
        deadline = world.now + WAIT_S
        while True:
            try:
                run(*arguments)
                break
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != BUSY or world.now >= deadline:
                    raise
            world.sleep(AGAIN_S)
        if DRIVER.error is not None:
            raise DRIVER.error

    def _may_be_lost(self, link: Link) -> None:
        if self.lost or (link.losses and link.rng.random() < link.losses):
            self._lose()

    def _lose(self) -> None:
        self.lost = True
        super().rollback()
        raise _lost()


def _connect(_dialect: object, _record: object, arguments: Any, options: dict[str, Any]) -> Any:
    if not WORLD:
        return None
    options = {**options, "timeout": 0, "factory": SimulatedConnection}
    return sqlite3.connect(*arguments, **options)


def _is_disconnect(_error: Exception, connection: Any, _cursor: object) -> bool:
    """Decide as the dialect of a server does: a lost connection leaves the pool."""
    return bool(getattr(getattr(connection, "driver_connection", connection), "lost", False))


_prototypes: dict[str, sa.Engine] = {}


def install() -> None:
    """Let SQLAlchemy open such connections in a world, and all engines share what it has compiled."""
    create_engine, connect = sa.create_engine, sqlite3.connect
    sa.event.listen(sa.Engine, "do_connect", _connect)

    def create_alike(url: sa.URL, **options: Any) -> sa.Engine:
        engine = create_engine(url, **options)
        engine.dialect.is_disconnect = _is_disconnect  # type: ignore[method-assign]
        prototype = _prototypes.setdefault(url.get_backend_name(), engine)
        engine.dialect, engine._compiled_cache = prototype.dialect, prototype._compiled_cache
        return engine

    def connect_and_keep(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **options)
        OPENED.append(connection)
        return connection

    sa.create_engine, sqlite3.connect = create_alike, connect_and_keep
