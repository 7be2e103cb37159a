"""Which small faults does no test notice?

    python benchmarks/mutants.py agent/access agent/proxy        # sixty in each of these folders or files
    python benchmarks/mutants.py --together --n 30 --most 0.1    # thirty over all; 1 if over a tenth survive
    python benchmarks/mutants.py --again agent/access            # what survived the last run
    python benchmarks/mutants.py feedback/budget.py --tests tests/feedback/test_budget.py

Of all changes that `mutant_operators.py` knows for a room, a sample is drawn by a seed and planted, one at a
time, in a copy of the tree, where those tests run that reach the line: near and quick ones first, up to some
seconds of tests. Code that runs at import (a constant, a field, a default) is reached by the tests of the
lines that mention its name, and by those that mention it themselves. Code that runs in processes which a
test starts is seen by coverage.py nowhere: the tests of its room run. A fault is noticed where a test fails,
where the code does not load any more, or where a test does not end. In the end the tests that noticed
something run without a fault: what one of them noticed that fails then is tried again without it.

The first run of all asks which test reaches which line: it takes twice as long as the tests do. Later runs
ask this only of the files of tests that have changed since, and a run with `--tests` only of these.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from functools import cache, cached_property
from hashlib import sha256
from itertools import chain
from pathlib import Path
from queue import SimpleQueue
from typing import Annotated

import coverage
import numpy as np
import typer
from mutant_operators import Mutant, mutants
from rich.progress import track

HERE = Path(__file__).parent
ROOT = Path.cwd()
CACHE = ROOT / ".cache" / "mutants"
PACKAGES = ("agent", "arms", "feedback")
APART = (
    "live",
    "deploy",
    "nodes",
    "clients",
    "anywhere",
    "test_docs.py",
    "test_commands.py",
    "test_english.py",
    "test_mutants.py",
)
"""Tests that run the code in other processes, or none of it."""

SEED = 20261121


# -- which test reaches which line -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Test:
    """A test that passes.

    Attributes:
        id: Its id, as pytest writes it.
        seconds: How long it took, fixtures included.
    """

    id: str
    seconds: float

    @property
    def file(self) -> str:
        """The file in which it is."""
        return self.id.split("::")[0]


class Reach:
    """Which test reaches which line, as some runs of tests found; a later one counts for its files.

    Args:
        folder: What `measure` wrote.
    """

    def __init__(self, folder: Path) -> None:
        self.runs = [
            _Run(run_folder)
            for run_folder in sorted(folder.glob("run-*"))
            if (run_folder / "files.json").exists()
        ]
        newest = {file: run for run in self.runs for file in run.files}
        self.tests = {
            test.id: test for run in self.runs for test in run.tests if newest.get(test.file) is run
        }
        self._by_file: defaultdict[str, set[str]] = defaultdict(set)
        for test in self.tests.values():
            self._by_file[test.file].add(test.id)

    def stale(self, files: Iterable[str]) -> list[str]:
        """Return those files of tests that have changed since they were asked, or never were."""
        digests = {file: digest for run in self.runs for file, digest in run.files.items()}
        return [file for file in files if digests.get(file) != _digest(ROOT / file)]

    def of(self, mutant: Mutant) -> set[str]:
        """Return the ids of the tests that reach a change."""
        if not mutant.names:
            return self._of_line(mutant.path, mutant.line)
        ids, mentioned = set[str](), chain.from_iterable(map(_mentions, mutant.names))
        for path, line in mentioned:
            ids |= self._by_file[path]
            if _below(path, PACKAGES):
                ids |= self._of_line(path, line)
        return ids

    def of_room(self, path: str) -> set[str]:
        """Return the ids of the tests in the folder that stands for that of a file, or the nearest above."""
        for folder in Path(path).parents:
            room = f"{(Path('tests') / folder).as_posix()}/"
            if ids := {test.id for test in self.tests.values() if test.file.startswith(room)}:
                return ids
        return set()

    def _of_line(self, path: str, line: int) -> set[str]:
        ids = set[str]()
        for run in self.runs:
            ids |= {test_id for test_id in run.reached(path, line) if test_id in self.tests}
        return ids


class _Run:
    """One run of tests under coverage: `lines*`, `seconds-*`, `files.json` and the sources in `tree`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, str] = json.loads((folder / "files.json").read_text())
        rows = (json.loads(row) for file in folder.glob("seconds-*") for row in file.open())
        self.tests = [Test(*row) for row in rows]
        self._lines: dict[str, dict[int, set[str]]] = {}

    def reached(self, path: str, line: int) -> set[str]:
        """Return the contexts of a line of the present source."""
        if path not in self._lines:
            self._lines[path] = self._read(path)
        return self._lines[path].get(line, set())

    def _read(self, path: str) -> dict[int, set[str]]:
        then: dict[int, set[str]] = defaultdict(set)
        for data in self._data:
            for line, tests in data.contexts_by_lineno(path).items():
                then[line].update(tests)
        there = self.folder / "tree" / path
        old, new = there.read_text().splitlines() if there.exists() else [], _text(path).splitlines()
        now = dict[int, set[str]]()
        for tag, i, _, j, end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
            for n in range(j, end):  # a changed line is reached by those that reached what stood there
                now[n + 1] = (
                    then[i + n - j + 1] if tag == "equal" else set().union(then[i], then[i + 1], then[i + 2])
                )
        return now

    @cached_property
    def _data(self) -> list[coverage.CoverageData]:
        parts = [coverage.CoverageData(str(file)) for file in sorted(self.folder.glob("lines*"))]
        for data in parts:
            data.read()
        return parts


@cache
def _mentions(name: str) -> list[tuple[str, int]]:
    """Return the files and lines of code and tests that mention a name."""
    word = re.compile(rf"\b{re.escape(name)}\b")
    return [
        (path, n)
        for path in {*sources(), *files_of_tests()}
        for n, line in enumerate(_text(path).splitlines(), start=1)
        if word.search(line)
    ]


@cache
def _text(path: str) -> str:
    return (ROOT / path).read_text()


def sources(*rooms: str) -> list[str]:
    """Return the Python files of rooms, or of all."""
    return [path for path in _kept() if path.endswith(".py") and _below(path, rooms or PACKAGES)]


def files_of_tests() -> list[str]:
    """Return the files that have tests, doctests among them."""
    apart = [f"tests/{name}" for name in APART]
    paths = [path for path in _kept() if Path(path).match("test_*.py") and not _below(path, apart)]
    return paths + [path for path in sources() if re.search(r"^\s*>>> ", _text(path), re.MULTILINE)]


@cache
def _kept() -> list[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [name for name in names if (ROOT / name).is_file() or (ROOT / name).is_symlink()]


def _below(path: str, rooms: Iterable[str]) -> bool:
    return any(path == room or path.startswith(f"{room.rstrip('/')}/") for room in rooms)


def _digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()


def measure(files: Sequence[str], workers: int) -> None:
    """Run tests under coverage and keep what they reach."""
    folder = CACHE / "reached" / f"run-{time.time_ns()}"
    copy_tree(folder / "tree")
    print(f"asking {len(files)} files of tests which lines they reach ...", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "pytest", *("-p", "mutant_coverage"), *("-p", "no:cacheprovider"), "-q"]
    command += ["-n", str(workers), "--dist", "loadfile", "-m", "not nightly", "--timeout", "600", *files]
    environment = os.environ | {
        "REACHED": str(folder),
        "PYTHONPATH": os.pathsep.join([str(folder / "tree"), str(HERE)]),
    }
    ended = subprocess.run(command, cwd=folder / "tree", env=environment, stdout=sys.stderr, check=False)
    if ended.returncode not in (0, 1, 5):
        raise SystemExit(f"the tests ended with {ended.returncode}")
    (folder / "files.json").write_text(json.dumps({file: _digest(folder / "tree" / file) for file in files}))


def copy_tree(target: Path) -> None:
    """Copy what the repository keeps."""
    for path in _kept():
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, target / path, follow_symlinks=False)


# -- planting ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Trial:
    """A change, and what became of it.

    Attributes:
        mutant: The change.
        tests: Ids of the tests that are to run, in this order.
        seconds: How long they take without it.
        noticed: What noticed it: the id of a test, or words; empty where nothing did.
    """

    mutant: Mutant
    tests: list[str]
    seconds: float
    noticed: str = ""

    def __str__(self) -> str:
        """Return the change, and how many tests ran."""
        ran = f"{len(self.tests)} tests ran" if self.tests else "no test reaches it"
        return f"{self.mutant}  ({ran})"


def chosen(mutant: Mutant, reach: Reach, files: set[str], most_s: float) -> tuple[list[str], float]:
    """Return the tests of some files that run for a change, and their seconds.

    Near ones come first, then quick ones. Of two that differ in the database alone, the one with SQLite runs.
    """
    reached = reach.of(mutant) or reach.of_room(mutant.path)
    ids = {test_id for test_id in reached if reach.tests[test_id].file in files}
    ids = {
        test_id
        for test_id in ids
        if "postgres" not in test_id or test_id.replace("postgresql", "sqlite") not in ids - {test_id}
    }
    path, room = Path(mutant.path), str(Path("tests") / Path(mutant.path).parent)

    def order(test: Test) -> tuple[int, float]:
        named = Path(test.file).stem
        near = path.stem in named or path.parent.name in named or test.file == mutant.path
        return (0 if near else 1 if test.file.startswith(room) else 2), test.seconds

    picked, seconds = list[str](), 0.0
    for test in sorted((reach.tests[test_id] for test_id in ids), key=order):
        if seconds + test.seconds > most_s and picked:
            continue
        picked.append(test.id)
        seconds += test.seconds + 0.01
    return picked, seconds


class Worker:
    """A process with a copy of the tree, which forks for each trial.

    Args:
        number: Names its copy.
    """

    def __init__(self, number: int) -> None:
        self.tree = CACHE / f"tree-{os.getpid()}-{number}"
        copy_tree(self.tree)
        environment = os.environ | {"PYTHONPATH": str(self.tree), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(HERE / "mutant_worker.py")]
        self._process = subprocess.Popen(
            command, cwd=self.tree, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._planted = 0

    def run(self, trial: Trial) -> str:
        """Return what noticed a change; empty where nothing did."""
        if not trial.tests:
            return ""
        file = self.tree / trial.mutant.path
        source = file.read_bytes()
        self._write(file, trial.mutant.planted(source))
        try:
            return next(iter(self.ask(trial.tests, 30 + 5 * trial.seconds)), "")
        finally:
            self._write(file, source)

    def ask(self, tests: Sequence[str], limit_s: float, *, first: bool = True) -> list[str]:
        """Run tests; return what failed: the first, or all."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(
            json.dumps({"tests": tests, "limit_s": limit_s, "first": first}),
            file=self._process.stdin,
            flush=True,
        )
        answer: list[str] = json.loads(self._process.stdout.readline())
        return answer

    def _write(self, file: Path, source: bytes) -> None:
        """Write a file with a time that no bytecode has."""
        self._planted += 1
        file.write_bytes(source)
        os.utime(file, (self._planted, self._planted))

    def end(self) -> None:
        """End the process and remove its copy."""
        self._process.terminate()
        self._process.wait()
        shutil.rmtree(self.tree, ignore_errors=True)


class Workers:
    """Some workers, which take trials in turn; use as a context.

    Args:
        n: How many.
    """

    def __init__(self, n: int) -> None:
        self._idle, self._sound = SimpleQueue[Worker](), set[str]()
        self._pool = ThreadPoolExecutor(n)
        self._all = list(self._pool.map(Worker, range(n)))
        for worker in self._all:
            self._idle.put(worker)

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        for worker in self._all:
            worker.end()

    def run(self, trials: Sequence[Trial], what: str) -> None:
        """Run trials, then those again that a test noticed which fails without a fault, without it."""
        for _ in track(self._pool.map(self._run, trials), what, total=len(trials)):
            pass
        while again := self._doubted(trials):
            list(self._pool.map(self._run, again))

    def _run(self, trial: Trial) -> None:
        worker = self._idle.get()
        try:
            trial.noticed = worker.run(trial)
        finally:
            self._idle.put(worker)

    def _doubted(self, trials: Sequence[Trial]) -> list[Trial]:
        """Return the trials that a test noticed which fails without a fault; each is asked once."""
        noticing = {trial.noticed for trial in trials if "::" in trial.noticed} - self._sound
        failing = set(self._all[0].ask(sorted(noticing), 600, first=False)) if noticing else set()
        self._sound |= noticing - failing
        again = [trial for trial in trials if trial.noticed in failing]
        for trial in again:
            trial.tests = [test_id for test_id in trial.tests if test_id not in failing]
        return again


def drawn(paths: Iterable[str], n: int, seed: int) -> list[Mutant]:
    """Draw changes of files, those that do not compile left out."""
    everything = [mutant for path in paths for mutant in mutants(path, ROOT)]
    sample = list[Mutant]()
    for i in np.random.default_rng(seed).permutation(len(everything)):
        mutant = everything[i]
        if len(sample) == n:
            break
        try:
            compile(mutant.planted((ROOT / mutant.path).read_bytes()), mutant.path, "exec")
        except SyntaxError:
            continue
        sample.append(mutant)
    return sample


def last(room: str) -> list[Trial]:
    """Return what became of the changes of a room, in its last run."""
    try:
        return [Trial(Mutant(**row.pop("mutant")), **row) for row in json.loads(_file(room).read_text())]
    except FileNotFoundError:
        raise SystemExit(f"{room}: no run of it is in {CACHE}") from None


def planted_again(mutant: Mutant) -> Mutant | None:
    """Return a change as it is in the present source: the nearest of those that read the same."""
    here = [
        change
        for change in mutants(mutant.path, ROOT)
        if (change.before, change.after) == (mutant.before, mutant.after)
    ]
    return min(
        here,
        key=lambda change: (abs(change.line - mutant.line), abs(change.start - mutant.start)),
        default=None,
    )


def report(room: str, trials: Sequence[Trial]) -> int:
    """Print what survived, and keep all; return how many did."""
    _file(room).write_text(json.dumps([asdict(trial) for trial in trials], indent=1))
    alive = [trial for trial in trials if not trial.noticed]
    ways = Counter(
        "by tests" if "::" in trial.noticed else trial.noticed for trial in trials if trial.noticed
    )
    print(f"{room}: {len(alive)} of {len(trials)} survive ({len(alive) / max(1, len(trials)):.1%}); noticed:")
    print("  " + ", ".join(f"{n} {way}" for way, n in ways.most_common()))
    for trial in sorted(alive, key=lambda trial: trial.mutant):
        print(f"  {trial}")
    return len(alive)


def _file(room: str) -> Path:
    return CACHE / f"{room.strip('/').replace('/', '.')}.json"


def main(
    rooms: Annotated[
        list[str] | None, typer.Argument(help="Folders or files; all where none is named.")
    ] = None,
    n: Annotated[int, typer.Option(help="Changes of each room.")] = 60,
    seed: Annotated[int, typer.Option(help="Seed that draws them.")] = SEED,
    together: Annotated[bool, typer.Option(help="Draw from all rooms at once.")] = False,
    again: Annotated[bool, typer.Option(help="Plant what survived the last run again.")] = False,
    most: Annotated[
        float, typer.Option(help="Share that may survive: above it, the exit status is 1.")
    ] = 1.0,
    test_s: Annotated[float, typer.Option(help="Seconds of tests for a change.")] = 40.0,
    tests: Annotated[list[str] | None, typer.Option(help="Folders or files of tests; else all.")] = None,
    workers: Annotated[int, typer.Option(help="Processes.")] = os.cpu_count() or 1,
) -> None:
    """Plant small faults, one at a time, and list those that no test notices."""
    named = rooms or list(PACKAGES)
    groups = {" ".join(named): named} if together else {room: [room] for room in named}
    for room, paths in groups.items():
        if not sources(*paths):
            raise SystemExit(f"{room}: no Python file of {', '.join(PACKAGES)} is there")
    files = {file for file in files_of_tests() if not tests or _below(file, tests)}
    reach = Reach(CACHE / "reached")
    if stale := reach.stale(sorted(files)):
        measure(stale, workers)
        reach = Reach(CACHE / "reached")
    alive = planted = 0
    with Workers(workers) as crew:
        for room, paths in groups.items():
            fresh = () if again else drawn(sources(*paths), n, seed)
            trials = last(room) if again else [Trial(mutant, [], 0.0) for mutant in fresh]
            pending = list[Trial]()
            for trial in trials:
                if trial.noticed:
                    continue
                if mutant := planted_again(trial.mutant) if again else trial.mutant:
                    trial.mutant = mutant
                    trial.tests, trial.seconds = chosen(mutant, reach, files, test_s)
                    pending.append(trial)
                else:
                    trial.noticed = "the code is gone"
            crew.run(pending, room)
            alive += report(room, trials)
            planted += len(trials)
    if alive > most * planted:
        raise SystemExit(f"{alive} of {planted} survive, more than {most:.0%}")


if __name__ == "__main__":
    typer.run(main)
