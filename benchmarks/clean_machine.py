"""From a wheel to a decision in environments that have never seen this tree: the seconds of each step.

    make dist
    python benchmarks/clean_machine.py dist --python /usr/bin/python3.11 --python /usr/bin/python3.12

For each Python it makes two environments. In the small one, `armwise`, it imports, audits, replays and
reports a log. In the other, `armwise[serve,local]`, it serves in an empty folder without a configuration,
asks, rates until the distribution for the question changes, and replays the log. No package may be compiled.
Downloads come from the cache of pip where it has them: run it twice for the figures of a warm cache. It ends
with 1 where a step fails, or the small environment has grown beyond its limits.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from stat import S_ISREG
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from armwise.agent.client import Client, ClientError

MOST_DISTRIBUTIONS, MOST_MB = 32, 150
"""Limits of the small environment: distributions with this one, and megabytes of downloads."""

SERVED = "armwise[serve,local]"
"""What is installed in the environment that serves."""

QUESTION = "Which function merges sorted inputs lazily?"

START_S, CHANGED_S = 300.0, 120.0
"""How long the start of the service, and a change of its distribution, may take."""

console = Console()


@dataclass(frozen=True)
class Step:
    """A step, how long it took, and what it brought."""

    what: str
    seconds: float
    result: str = ""


LEFT_OUT = ("ARMWISE_", "OPENAI_", "PYTHON", "VIRTUAL_ENV", "RAY_")
"""How variables begin that no step sees."""


class Environment:
    """A virtual environment, with a home and a folder of its own."""

    def __init__(self, root: Path, python: str, port: int, uv: str | None) -> None:
        self.root, self.port, self.uv = root, port, uv
        self.python = root / "env" / "bin" / "python"
        self.steps: list[Step] = []
        self.folder = root / "empty"
        self.folder.mkdir(parents=True)
        self.environ = {key: value for key, value in os.environ.items() if not key.startswith(LEFT_OUT)}
        cache = os.environ.get("PIP_CACHE_DIR") or str(Path("~/.cache/pip").expanduser())
        self.environ |= {"HOME": str(root), "PIP_CACHE_DIR": cache}
        if uv is not None:  # an environment as uv makes it: without pip
            store = os.environ.get("UV_CACHE_DIR") or str(Path("~/.cache/uv").expanduser())
            self.environ |= {"UV_CACHE_DIR": store, "PATH": f"{Path(uv).parent}:{os.environ['PATH']}"}
        made = [sys.executable, "-m", "virtualenv", "--quiet", "--python", python, str(root / "env")]
        subprocess.run([*made, *(["--no-pip"] if uv is not None else [])], check=True)
        self.version = self.run("python", "-c", "import platform; print(platform.python_version())").strip()

    def run(self, *words: str, cwd: Path | None = None) -> str:
        """Run a program of the environment, and return what it prints."""
        command = [str(self.root / "env" / "bin" / words[0]), *words[1:]]
        done = subprocess.run(
            command, cwd=cwd or self.folder, env=self.environ, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
        return done.stdout

    @contextmanager
    def step(self, what: str) -> Iterator[list[str]]:
        """Time a step; the result is the last text of the list."""
        result: list[str] = [""]
        began = time.perf_counter()
        yield result
        self.steps.append(Step(what, time.perf_counter() - began, result[-1]))
        console.print(
            f"{self.version}  {what}: {self.steps[-1].seconds:.1f} s  {result[-1]}", highlight=False
        )

    def install(self, requirement: str) -> tuple[int, float]:
        """Install; return the number of distributions, and the megabytes of downloads; 0 by uv."""
        if self.uv is not None:
            uv = [self.uv, "pip", "install", "--quiet", "--only-binary=:all:", f"--python={self.python}"]
            with self.step("install, by uv") as notes:
                subprocess.run([*uv, requirement], env=self.environ, check=True)
                return self._measured(notes), 0.0
        pip, files = ("python", "-m", "pip", "--disable-pip-version-check"), self.root / "files"
        with self.step("download") as notes:
            self.run(*pip, "download", "--quiet", "--only-binary", ":all:", "--dest", str(files), requirement)
            mb = sum(file.stat().st_size for file in files.iterdir()) / 1e6
            notes.append(f"{mb:.0f} MB")
        with self.step("install") as notes:
            self.run(*pip, "install", "--quiet", "--no-index", "--find-links", str(files), requirement)
            n = self._measured(notes)
        return n, mb

    def _measured(self, notes: list[str]) -> int:
        """Return the number of distributions."""
        names = "import importlib.metadata as m; print(*{one.name for one in m.distributions()})"
        n = len(set(self.run("python", "-c", names).split()) - {"pip", "setuptools", "wheel"})
        installed = [file.lstat() for file in (self.root / "env").rglob("*")]
        on_disk = sum(status.st_size for status in installed if S_ISREG(status.st_mode)) / 1e6
        notes.append(f"{n} distributions, {on_disk:.0f} MB on disk")
        return n


def small(environment: Environment, wheel: Path) -> None:
    """Install the small one, and read a log with it."""
    n, mb = environment.install(str(wheel))
    if n > MOST_DISTRIBUTIONS or mb > MOST_MB:
        raise SystemExit(
            f"{n} distributions and {mb:.0f} MB: at most {MOST_DISTRIBUTIONS} and {MOST_MB} were expected"
        )
    rng = np.random.default_rng(1)
    rows = ["question,arm,propensity,reward"]
    for number in range(600):
        arm, p, right = ("large", 0.6, 0.75) if rng.random() < 0.6 else ("small", 0.4, 0.6)
        rows.append(f"question {number},{arm},{p},{int(rng.random() < right)}")
    (environment.folder / "log.csv").write_text("\n".join(rows) + "\n")
    with environment.step("import, audit, replay, report") as notes:
        columns = [word for name in rows[0].split(",") for word in (f"--{name}", name)]
        environment.run("armwise", "import", "log.csv", *columns, "--arms", "large,small", "-o", "log.jsonl")
        environment.run("armwise", "audit", "log.jsonl")
        environment.run("armwise", "replay", "--from", "log.jsonl", "-o", "replay.html")
        environment.run("armwise", "report", "--from", "log.jsonl", "-o", "report.html")
        notes.append("replay.html, report.html")
    with environment.step("import of armwise.agent.client, armwise.agent.policies and armwise.feedback.ope"):
        environment.run(
            "python", "-c", "import armwise.agent.client, armwise.agent.policies, armwise.feedback.ope"
        )


def served(environment: Environment, wheel: Path) -> None:
    """Install what serves, and live through the first minute."""
    environment.install(f"{SERVED} @ {wheel.as_uri()}")
    began = time.perf_counter()
    command = [str(environment.root / "env" / "bin" / "armwise"), "serve", "--port", str(environment.port)]
    log = environment.root / "serve.log"
    with log.open("wb") as out:
        service = subprocess.Popen(
            command, cwd=environment.folder, env=environment.environ, stdout=out, stderr=subprocess.STDOUT
        )
    try:
        url = f"http://127.0.0.1:{environment.port}"
        with environment.step("serve: from the command to readiness"):
            while "ready after" not in log.read_text(errors="replace"):
                if service.poll() is not None or time.perf_counter() - began > START_S:
                    raise SystemExit(f"the service did not start:\n{log.read_text(errors='replace')}")
                time.sleep(0.1)
        with environment.step("first answer") as notes:
            answer = environment.run("armwise", "ask", QUESTION, "--url", url)
            notes.append(f"{time.perf_counter() - began:.0f} s after the command")
        decision = re.search(r"armwise feedback (\w+)", answer)
        assert decision is not None, answer
        with (
            Client(url, attempts=5) as client,
            environment.step("feedback until the distribution changed") as notes,
        ):
            before, after = changed(client, decision[1])
            notes.append(f"{before} -> {after}")
        with environment.step("replay of the log") as notes:
            config = environment.root / ".armwise" / "example" / "serve_config.yaml"
            environment.run("armwise", "replay", "-c", str(config), "-o", "replay.html")
            notes.append("replay.html")
    finally:
        service.terminate()
        service.wait(60)


def changed(client: Client, decision: str) -> tuple[str, str]:
    """Rate a decision, and others on the same question, until its distribution is another; return both."""
    client.feedback(decision, thumb=1)
    first, deadline = None, time.perf_counter() + CHANGED_S
    while time.perf_counter() < deadline:
        try:
            answer = client.retrieve(QUESTION)
        except ClientError:
            continue
        pmf = {arm: round(p, 3) for arm, p in answer.agent.pmf.items()}
        if first is None:
            first = pmf
        elif pmf != first:
            return shown(first), shown(pmf)
        client.feedback(answer, thumb=1 if answer.arm.startswith("library") else -1)
    raise SystemExit(f"the distribution stayed {first} for {CHANGED_S:.0f} s")


def shown(pmf: Mapping[str, float]) -> str:
    """Return a distribution in one line."""
    return ", ".join(f"{arm} {p:.3f}" for arm, p in pmf.items())


def main(
    dist: Annotated[Path, typer.Argument(help="Folder with the wheel of `make dist`.")],
    python: Annotated[list[str] | None, typer.Option("--python", help="A Python; repeatable.")] = None,
    only_small: Annotated[bool, typer.Option("--small", help="The small environment alone.")] = False,
    by_uv: Annotated[
        bool, typer.Option("--uv", help="Install by uv, in an environment without pip.")
    ] = False,
    port: Annotated[int, typer.Option(help="Port of the service.")] = 8000,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the figures, as JSON.")] = None,
) -> None:
    """Install the wheel of a folder into empty environments, and use it there."""
    (wheel,) = dist.absolute().glob("armwise-*.whl")
    uv = str(Path(sys.executable).with_name("uv")) if by_uv else None
    runs = []
    for each in python or [sys.executable]:
        for name, part in (("armwise", small), (SERVED, served)):
            if part is served and only_small:
                continue
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                environment = Environment(Path(folder), each, port, uv)
                part(environment, wheel)
            runs.append(
                {"python": environment.version, "of": name, "steps": list(map(asdict, environment.steps))}
            )
            table = Table("step", "s", "", title=f"{name} on Python {environment.version}")
            for step in environment.steps:
                table.add_row(step.what, f"{step.seconds:.1f}", step.result)
            console.print(table)
    if output is not None:
        output.write_text(json.dumps(runs, indent=2))


if __name__ == "__main__":
    typer.run(main)
