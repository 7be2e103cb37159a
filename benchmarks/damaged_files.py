"""Damage each derived file of a home, prepare the service again, and say what came of it.

    python benchmarks/damaged_files.py

A trial is one file and one damage: cut to half, one bit flipped in the middle or at the end, deleted. It
counts as

    rebuilt       preparing names the file, and every arm then finds what it found before
    named         an error names the file and the command that makes it again
    unnamed       an error names no file or no remedy
    other         no error, and an arm finds something else, or something else is read
    unnoticed     no error, no warning, and the same results
    found         trials in which `armwise doctor` names the file as a problem

Last, the time that SHA-256 takes for a gigabyte, and for the home.
"""

import os
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import typer

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.agent.derived import DAMAGES, Home, Warnings, damage

COLUMNS = ("rebuilt", "named", "unnamed", "other", "unnoticed")

REMEDIES = ("armwise",)


def outcome_of(home: Home, name: str, before: dict[str, Any]) -> str:
    """Prepare and use a home in which one file is damaged; return a name of `COLUMNS`."""
    with Warnings() as warnings:
        try:
            home.prepare()
            same = home.results() == before
        except Exception as error:  # any of it is an outcome  # noqa: BLE001
            message = str(error)
            return "named" if name in message and any(remedy in message for remedy in REMEDIES) else "unnamed"
    named = any(name in line for line in warnings.lines)
    return ("rebuilt" if named else "unnoticed") if same else "other"


def trial(home: Home, path: Path, how: str, before: dict[str, Any]) -> tuple[str, bool]:
    """Return the outcome of a damage, and whether `armwise doctor` finds it."""
    damage(path, how)
    try:
        lines = [line for line in home.findings() if line.startswith("problem")]
    except Exception:  # it finds nothing then  # noqa: BLE001
        lines = []
    return outcome_of(home, path.name, before), any(path.name in line for line in lines)


def main() -> None:
    """Print a table by kind of file."""
    with tempfile.TemporaryDirectory() as folder:
        home = Home(Path(folder) / "now")
        home.root.mkdir()
        home.make()
        before = home.results()
        kept = Path(folder) / "kept"
        shutil.copytree(home.root, kept)
        rows: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for path in home.files():
            kind = str(path.parent.relative_to(home.root)).split("/")[-1].partition("-")[0]
            for how in DAMAGES:
                outcome, diagnosed = trial(home, path, how, before)
                rows[kind].update([outcome, *(["found"] if diagnosed else [])])
                if os.environ.get("VERBOSE"):
                    print(outcome, diagnosed, path.relative_to(home.root), how, flush=True)
                shutil.rmtree(home.root)
                shutil.copytree(kept, home.root)
        print(f"{'folder':12}" + "".join(f"{name:>11}" for name in ("trials", *COLUMNS, "found")))
        total: Counter[str] = Counter()
        for kind, counts in [*sorted(rows.items()), ("all", total)]:
            trials = sum(counts[name] for name in COLUMNS)
            print(f"{kind:12}{trials:11}" + "".join(f"{counts[name]:11}" for name in (*COLUMNS, "found")))
            if counts is not total:
                total.update(counts)
        began = time.perf_counter()
        home.prepare()
        print(f"preparing the home again: {1000 * (time.perf_counter() - began):.0f} ms")
        hashed(Path(folder) / "big")


def hashed(path: Path, mib: int = 1024) -> None:
    """Print how long a file of some MiB takes, the second time of two."""
    from armwise.arms.manifest import WrittenFile

    with path.open("wb") as file:
        for _ in range(mib):
            file.write(os.urandom(2**20))
    for _ in range(2):
        began = time.perf_counter()
        WrittenFile.from_file(path)
    print(f"SHA-256 of {mib:,} MiB: {time.perf_counter() - began:.2f} s")


if __name__ == "__main__":
    typer.run(main)
