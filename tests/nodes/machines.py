"""Machines on one machine: namespaces of Linux with an address, a name, processes and a folder of their own.

    with Network() as network:
        machine = network.machine()
        machine.run(["ray", "start", "--head", "--block", ...], environment)
        machine.kill()  # every process of it at once, as when a machine loses its power

What lies at `network.home` is of one machine alone; everything else of the file system is shared, as an image
is, and so is a Unix socket in it, such as that of a database. Needs root and `ip`.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).resolve().parents[1]

CODE = ("armwise", "agent", "arms", "feedback", "tests")
"""What machines have of the project."""

STOP_S = 30.0
"""How long a machine may take to end in order."""


class NetworkError(Exception):
    """There can be no such machines here; the message says why."""


class Network:
    """A network of machines, which the process that made it reaches as well; a context manager.

    Attributes:
        address: Of the process that made it.
        folder: A short path, removed at the end.
        home: A folder that each machine has by itself.
        release: A copy of the code, which machines run: what is edited meanwhile does not reach them.

    Raises:
        NetworkError: It takes rights, or programs, that are missing.
    """

    def __init__(self) -> None:
        self._name = f"aw{os.getpid()}"
        self._subnet = f"10.213.{os.getpid() % 250}"
        self._numbers = count(1)
        self._machines: list[Machine] = []
        if shutil.which("ip") is None or shutil.which("unshare") is None:
            raise NetworkError("`ip` or `unshare` is missing: install iproute2 and util-linux")
        for left in re.findall(r"\baw(\d+):", ip("-o", "link", "show", "type", "bridge")):
            if not Path("/proc", left).exists():  # killed before it could remove its network
                remove(f"aw{left}")
        ip("link", "add", self._name, "type", "bridge")
        self.address = f"{self._subnet}.254"
        ip("addr", "add", f"{self.address}/24", "dev", self._name)
        ip("link", "set", self._name, "up")
        self.folder = Path(tempfile.mkdtemp(prefix="aw", dir="/tmp"))
        self.home = self.folder / "own"
        self.home.mkdir()
        self.release = self.folder / "release"
        for name in CODE:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, self.release / name, symlinks=True, ignore=ignored)

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
        ip("-n", name, "route", "add", "default", "via", self.address)
        folder = self.folder / f"n{number}"
        folder.mkdir()
        machine = Machine(name, f"{self._subnet}.{number}", outside, folder, self.home, self.release)
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
        remove(self._name)
        shutil.rmtree(self.folder, ignore_errors=True)


class Machine:
    """A machine of a network.

    Attributes:
        name: Its name.
        address: Its address.
        folder: What it sees as its own folder.
    """

    def __init__(
        self, name: str, address: str, outside: str, folder: Path, home: Path, release: Path
    ) -> None:
        self.name, self.address, self.folder = name, address, folder
        self._outside = outside  # the other end of its cable
        self._home, self._release = home, release
        self._process: subprocess.Popen[bytes] | None = None
        self._typed = 0

    @property
    def output(self) -> Path:
        """What its process wrote."""
        return self.folder / "output.txt"

    def run(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start its one process, which starts all others; it ends with them, or with the caller."""
        entered = ["setpriv", "--pdeathsig", "KILL", "ip", "netns", "exec", self.name]
        apart = ["unshare", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        script = 'hostname "$1" && mount --bind "$2" "$3" && shift 3 && exec "$@"'
        shell = ["sh", "-c", script, "sh", self.name, str(self.folder), str(self._home)]
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                [*entered, *apart, *shell, *command],
                cwd=self._release,
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def type(self, commands: str) -> Path:
        """Have its process, which is a shell, run commands up to the first that fails.

        Returns:
            A file, which has the exit status as a line once they have ended.
        """
        assert self._process is not None
        assert self._process.stdin is not None, "it was run"
        self._typed += 1
        name = f"status{self._typed}"
        told = " &&\n".join(re.findall(r"(?:[^\n]*\\\n)*[^\n]+", commands))
        self._process.stdin.write(f'{{ {told}\n}} </dev/null; echo $? >"{self._home}/{name}"\n'.encode())
        self._process.stdin.flush()
        return self.folder / name

    def kill(self) -> None:
        """Kill all its processes at once: the kernel does so when the first one ends."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_S)
            assert self._process.stdin is not None, "it was run"
            self._process.stdin.close()

    def cut(self) -> None:
        """Cut it off from the network: nothing arrives, nothing is refused, and its processes go on."""
        ip("link", "set", self._outside, "down")

    def connect(self) -> None:
        """Connect it again."""
        ip("link", "set", self._outside, "up")


def remove(network: str) -> None:
    """Remove a network by its name, as far as there is one."""
    for machine in re.findall(rf"^{network}n\d+\b", ip("netns", "list"), re.MULTILINE):
        with suppress(NetworkError):
            ip("netns", "del", machine)  # with its end of the cable
    with suppress(NetworkError):
        ip("link", "del", network)


def ip(*words: str) -> str:
    """Run `ip`, and return what it prints. Raises NetworkError."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NetworkError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout
