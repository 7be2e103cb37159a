"""Run a command, and count what another user of this machine could reach meanwhile, and afterwards.

    python benchmarks/exposure.py [--keep FOLDER]... [--until TEXT] -- COMMAND [ARGUMENT]...

Looks five times a second at the command and all processes below it: TCP sockets that listen on more than
the loopback address, and Unix sockets and files of the temporary folder, of the home of the user and of
folders given, but for installed packages, that user `nobody` could connect to, replace or read. Files are
looked for in the folders of `--keep` after the end, too. `--until` interrupts the command once it has printed
a text. Takes root, who can become `nobody`.
"""

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import Annotated

import psutil
import typer
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.other_users import USUAL, refused

LOOK_S = 0.2
LOOPBACK = ("127.", "::1", "::ffff:127.")

console = Console()


class Reached:
    """What was reached, by kind; each place counts once."""

    def __init__(self, folders: list[Path]) -> None:
        self.looks = 0
        self.tcp: set[str] = set()
        self.sockets: set[Path] = set()
        self.files: set[Path] = set()
        self.seen = Counter[str]()
        self._tried: set[tuple[str, Path]] = set()
        self._folders = [folder.resolve() for folder in (*folders, Path(tempfile.gettempdir()), Path.home())]

    def look(self, pid: int) -> None:
        """Look at a process and at all below it."""
        self.looks += 1
        try:
            processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        except psutil.Error:
            return
        for process in processes:
            try:
                name, places = process.name(), process.net_connections(kind="all")
                files = [Path(file.path) for file in process.open_files()]
            except psutil.Error:  # it has ended
                continue
            for place in places:
                if place.status == psutil.CONN_LISTEN:
                    self.seen["TCP sockets"] += 1
                    if not place.laddr.ip.startswith(LOOPBACK):
                        self.tcp.add(f"{name.partition('.')[0]} {place.laddr.ip}:{place.laddr.port}")
                elif place.family.name == "AF_UNIX" and isinstance(place.laddr, str) and place.laddr:
                    self._try("connect", Path(place.laddr), self.sockets)
                    self._try("replace", Path(place.laddr), self.sockets)
            for file in files:
                installed = "site-packages" in file.parts
                if not installed and any(file.is_relative_to(folder) for folder in self._folders):
                    self._try("read", file, self.files)

    def walk(self, folder: Path) -> None:
        """Look at the files of a folder."""
        for place in folder.rglob("*"):
            if place.is_file() and not place.is_symlink():
                self._try("read", place, self.files)

    def _try(self, attempt: str, place: Path, into: set[Path]) -> None:
        if (attempt, place) in self._tried or not place.exists():
            return
        self._tried.add((attempt, place))
        self.seen[f"{attempt} tried"] += 1
        if not refused(attempt, place):
            into.add(place)


def main(
    command: Annotated[list[str], typer.Argument(help="What is run.")],
    keep: Annotated[list[Path] | None, typer.Option(help="Folder that is looked through afterwards.")] = None,
    until: Annotated[str, typer.Option(help="Interrupt it once it has printed this.")] = "",
) -> None:
    """Print a table of what another user could reach."""
    if os.geteuid() != 0:
        raise typer.BadParameter("run it as root, who can become another user")
    reached = Reached(keep or [])
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        umask=USUAL,
        start_new_session=True,
    )
    printed: list[str] = []
    complete = threading.Event()

    def read() -> None:
        for line in process.stdout or ():
            printed.append(line)
            if until and until in line:
                complete.set()

    threading.Thread(target=read, daemon=True).start()
    pause = threading.Event()
    while process.poll() is None:
        reached.look(process.pid)
        if complete.is_set():
            complete.clear()
            os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C at a terminal does
        pause.wait(LOOK_S)
    for folder in keep or []:
        reached.walk(folder)
    table = Table("reached by others", "number", "which", title=shlex.join(command)[:100])
    rows: dict[str, set[str] | set[Path]] = {
        "TCP on other addresses": reached.tcp,
        "Unix sockets": reached.sockets,
        "files": reached.files,
    }
    for name, places in rows.items():
        table.add_row(name, str(len(places)), ", ".join(sorted(str(place) for place in places)[:4]))
    console.print(table)
    console.print(f"exit code {process.returncode}; {reached.looks} looks, {dict(reached.seen)}")
    if process.returncode not in (0, -signal.SIGINT, 130):
        console.print("".join(printed[-20:]), markup=False)


if __name__ == "__main__":
    typer.run(main)
