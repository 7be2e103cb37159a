"""Machines on one machine: namespaces of Linux with an address, a name, processes and a folder of their own.

    with Network() as network:
        machine = network.machine()
        machine.run(["ray", "start", "--head", "--block", ...], environment)
        machine.kill()  # every process of it at once, as when a machine loses its power

What lies at `network.home` is of one machine alone; everything else of the file system is shared, as an image
is, and so is a Unix socket in it, such as that of a database. Needs root and `ip`.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).resolve().parents[1]

STOP_S = 30.0
"""How long a machine may take to end in order."""


class NetworkError(Exception):
    """There can be no such machines here; the message says why."""


class Network:
    """A network of machines, which the process that made it reaches as well; a context manager.

    Attributes:
        folder: A short path, removed at the end.
        home: A folder that each machine has by itself.

    Raises:
        NetworkError: It takes rights, or programs, that are missing.
    """

    def __init__(self) -> None:
        self._name = f"aw{os.getpid() % 100_000}"
        self._subnet = f"10.213.{os.getpid() % 250}"
        self._numbers = count(1)
        self._machines: list[Machine] = []
        if shutil.which("ip") is None or shutil.which("unshare") is None:
            raise NetworkError("`ip` or `unshare` is missing: install iproute2 and util-linux")
        ip("link", "add", self._name, "type", "bridge")
        ip("addr", "add", f"{self._subnet}.254/24", "dev", self._name)
        ip("link", "set", self._name, "up")
        self.folder = Path(tempfile.mkdtemp(prefix="aw", dir="/tmp"))
        self.home = self.folder / "own"
        self.home.mkdir()

    def machine(self) -> "Machine":
        """Add a machine."""
        number = next(self._numbers)
        name, outside = f"{self._name}n{number}", f"{self._name}v{number}"
        ip("netns", "add", name)
        ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("link", "set", outside, "master", self._name, "up")
        ip("-n", name, "addr", "add", f"{self._subnet}.{number}/24", "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "up")
        ip("-n", name, "link", "set", "lo", "up")
        ip("-n", name, "route", "add", "default", "via", f"{self._subnet}.254")
        own = self.folder / f"n{number}"
        own.mkdir()
        machine = Machine(name, f"{self._subnet}.{number}", outside, own, self.home)
        self._machines.append(machine)
        return machine

    def kill(self) -> None:
        """Kill every machine."""
        for machine in self._machines:
            machine.kill()

    def __enter__(self) -> "Network":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        for machine in self._machines:
            with suppress(NetworkError):
                ip("netns", "del", machine.name)  # with its end of the cable
        with suppress(NetworkError):
            ip("link", "del", self._name)
        shutil.rmtree(self.folder, ignore_errors=True)


class Machine:
    """A machine of a network.

    Attributes:
        name: Its name.
        address: Its address.
        folder: What it sees as its own folder.
    """

    def __init__(self, name: str, address: str, outside: str, folder: Path, home: Path) -> None:
        self.name, self.address, self.folder = name, address, folder
        self._outside = outside  # the other end of its cable
        self._home = home
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def output(self) -> Path:
        """What its process wrote."""
        return self.folder / "output.txt"

    def run(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start its one process, which starts all others; it ends with them."""
        entered = ["ip", "netns", "exec", self.name]
        apart = ["unshare", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        script = 'hostname "$1" && mount --bind "$2" "$3" && shift 3 && exec "$@"'
        own = ["sh", "-c", script, "sh", self.name, str(self.folder), str(self._home)]
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                [*entered, *apart, *own, *command],
                cwd=ROOT,
                env=dict(environment),
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def kill(self) -> None:
        """Kill all its processes at once: the kernel does so when the first one ends."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_S)

    def cut(self) -> None:
        """Cut it off from the network: nothing arrives, nothing is refused, and its processes go on."""
        ip("link", "set", self._outside, "down")

    def connect(self) -> None:
        """Connect it again."""
        ip("link", "set", self._outside, "up")


def ip(*words: str) -> None:
    """Run `ip`. Raises NetworkError."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NetworkError(f"ip {' '.join(words)}: {done.stderr.strip()}")
