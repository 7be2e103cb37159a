"""Bad weather: the database is away, hangs or fails over, its disk is full or read-only, under traffic.

Whatever is asked then must be refused with 503 and Retry-After or be durable, `/ready` must say
503, and when the weather is over the service must answer again by itself.
"""

import errno
import resource
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.crashes.children import PATIENCE_S, CrashError, Keeper
from tests.crashes.service import Kill, Service
from tests.crashes.traffic import PAUSE_S
from tests.postgres import Server

REFUSALS = 30
"""How often the service must refuse before the weather ends."""

SMALL_BYTES = 48 << 20
"""Size of a disk that is soon full."""


@dataclass(slots=True)
class Outage:
    """What came of one outage.

    Attributes:
        name: What was the matter.
        asked: Questions and feedback that were sent meanwhile by one client.
        refused: Those that got 503 with Retry-After.
        kept: Those that were acknowledged.
        odd: Answers that were neither.
        unready: Whether `/ready` came to say 503.
        lasted_s: How long it lasted.
        back: How it ended.
    """

    name: str
    asked: int = 0
    refused: int = 0
    kept: int = 0
    odd: list[str] = field(default_factory=list)
    unready: bool = False
    lasted_s: float = 0.0
    back: Kill | None = None

    def __str__(self) -> str:
        """Return it as a line of a report."""
        back = "never" if self.back is None else f"after {self.back.answers_s:.2f} s"
        return (
            f"{self.name} for {self.lasted_s:.1f} s: {self.asked} asked, {self.refused} refused with 503 and "
            f"Retry-After, {self.kept} kept, {len(self.odd)} answered otherwise; not ready: {self.unready}; "
            f"answers again {back}"
        )


def endure(service: Service, name: str, weather: AbstractContextManager[None], least_s: float) -> Outage:
    """Ask until enough was refused and the service says that it is not ready; then wait until it is back.

    Args:
        service: What has to endure it.
        name: What is the matter.
        weather: Begins it, and ends it.
        least_s: How long it lasts at least.

    Raises:
        CrashError: It went on as if nothing were the matter, or did not come back.
    """
    outage = Outage(name)
    with weather:
        began = time.monotonic()
        while outage.refused < REFUSALS or not outage.unready or time.monotonic() - began < least_s:
            if time.monotonic() - began > PATIENCE_S:
                raise CrashError(f"{name}: after {PATIENCE_S:g} s this is all that happened: {outage}")
            _ask(service, outage)
            outage.unready |= service.send("/ready").status_code == 503
            time.sleep(PAUSE_S)
        outage.lasted_s = time.monotonic() - began
    outage.back = service.recovered(Kill(name, "", ""), time.monotonic())
    return outage


def _ask(service: Service, outage: Outage) -> None:
    """Ask one question and judge it, and count what becomes of both."""
    ledger = service.ledger
    key = f"{outage.name}-{ledger.round}-{outage.asked}".replace(" ", "-")
    item = {"decision_id": key, "metric_name": "thumb", "value": 1.0, "feedback_id": key}
    answer = service.send("/v1/retrieve", {"query": "is it raining?"}, key)
    receipt = service.send("/v1/feedback", item)
    if answer.is_success:
        ledger.note_answer(answer.json()["agent"], None, over=True)
    if receipt.is_success:
        ledger.note_receipt(item, receipt.json())
    for response in (answer, receipt):
        outage.asked += 1
        if response.status_code == 503 and "retry-after" in response.headers:
            outage.refused += 1
        elif response.is_success:
            outage.kept += 1
        else:
            outage.odd.append(f"{response.status_code}: {response.text}")


@contextmanager
def database_away(server: Server) -> Iterator[None]:
    """Let a database server be gone."""
    server.kill()
    try:
        yield
    finally:
        server.start()


@contextmanager
def failed_over(server: Server, standby: Server) -> Iterator[None]:
    """Let a database server be gone for good, and its standby take over."""
    server.kill()
    try:
        yield
    finally:
        standby.promote()


@contextmanager
def read_only(log: Path) -> Iterator[None]:
    """Let nobody write to an SQLite log, not even who has it open. Raises PermissionError."""
    places = [str(place) for place in (log, log.with_name(f"{log.name}-wal")) if place.exists()]
    if subprocess.run(["chattr", "+i", *places], check=False, capture_output=True).returncode:
        raise PermissionError(errno.EPERM, "files cannot be made immutable here", str(log))
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", *places], check=True)


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Mount a small disk in memory. Raises PermissionError where we may not."""
    disk = folder / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_BYTES}", "none", str(disk)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        raise PermissionError(errno.EPERM, "a disk cannot be mounted here", str(disk))
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


@contextmanager
def full(disk: Path) -> Iterator[None]:
    """Fill a disk to its last byte."""
    filler = disk / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    try:
        yield
    finally:
        filler.unlink()


@contextmanager
def no_file_grows(keepers: Iterable[Keeper]) -> Iterator[None]:
    """Let processes write nothing into any file: a full disk where none can be mounted."""
    pids = [keeper.pid for keeper in keepers]
    for pid in pids:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
