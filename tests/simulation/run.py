"""The command: worlds by their seeds, and the shortest schedule of one that fails."""

import gc
import os
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated

import typer
from rich.progress import track

from tests.simulation.history import Fault
from tests.simulation.plan import Plan, draw
from tests.simulation.simulate import Outcome, find_path, make_image, simulate

CHUNK = 250
"""Worlds of one process, where there are several."""

SHOWN = 60
"""Last lines of the trace of a world that fails."""

_now = time.process_time


def attempt(plan: Plan) -> Outcome:
    """Run a world; an error of ours counts as what is wrong with it."""
    try:
        return simulate(plan)
    except Exception:  # noqa: BLE001 - shown with the seed
        return Outcome(plan, [Fault("error", traceback.format_exc())], 0.0, 0, "")


def shorten(outcome: Outcome) -> Outcome:
    """Leave out events as long as a fault of the same kind is found."""
    kinds = {fault.kind for fault in outcome.faults}
    size = max(1, len(outcome.plan.events) // 2)
    while size:
        start = 0
        while start < len(outcome.plan.events):
            events = outcome.plan.events
            shorter = attempt(outcome.plan.with_events(events[:start] + events[start + size :]))
            if kinds & {fault.kind for fault in shorter.faults}:
                outcome = shorter
            else:
                start += size
        size //= 2
    return outcome


def main() -> None:
    """Run."""
    typer.run(run)


def run(
    seeds: Annotated[int, typer.Option(min=1, help="Number of worlds.")] = 200,
    first: Annotated[int, typer.Option(help="Seed of the first one.")] = 1,
    processes: Annotated[int, typer.Option(min=1, help="Processes that share the worlds.")] = 1,
    keep_going: Annotated[bool, typer.Option(help="Go on after a failure.")] = False,
    short: Annotated[bool, typer.Option(help="Find the shortest schedule of a failure.")] = True,
    trace: Annotated[bool, typer.Option(help="Show what happened in each world.")] = False,
    digests: Annotated[
        bool, typer.Option(help="Show a digest of each world, to see that it repeats.")
    ] = False,
    sabotage: Annotated[str, typer.Option(help="Plant a fault: see `tests.simulation.sabotage`.")] = "",
) -> None:
    """Run worlds, and show the shortest schedule of each one that fails."""
    del sabotage  # planted before anything was imported
    if processes > 1:
        sys.exit(_share(range(first, first + seeds), processes))
    make_image()
    gc.freeze()  # after each world is collected what it left, and not what was loaded
    began, n, failed, total = _now(), 0, 0, Counter[str]()
    for n, seed in enumerate(range(first, first + seeds), 1):  # noqa: B007 - `n` is shown at the end
        outcome = attempt(draw(seed))
        total.update(outcome.counts)
        if digests:
            print(f"{seed} {outcome.digest} {outcome.steps} {outcome.seconds:.6f}")
        if trace:
            print("\n".join(outcome.trace))
        if outcome.faults:
            failed += 1
            show(shorten(outcome) if short else outcome)
            if not keep_going:
                break
    counts = ", ".join(f"{n} {name}" for name, n in total.items())
    print(f"{n} worlds in {_now() - began:.1f} s of a processor, {failed} failed: {counts}")
    sys.stdout.flush()
    find_path(make_image().url).parent.rmdir()
    os._exit(1 if failed else 0)  # what is left of the worlds is not worth a finalizer


def _share(seeds: Sequence[int], processes: int) -> int:
    """Run worlds in several processes; return the exit code."""
    began, firsts = time.monotonic(), seeds[::CHUNK]
    options = [word for word in sys.argv[1:] if word in ("--keep-going", "--no-short")]

    def run_chunk(first: int) -> subprocess.CompletedProcess[str]:
        n = min(CHUNK, seeds[-1] + 1 - first)
        command = [
            sys.executable,
            "-m",
            "tests.simulation",
            "--first",
            str(first),
            "--seeds",
            str(n),
            *options,
        ]
        return subprocess.run(command, capture_output=True, text=True)

    with ThreadPoolExecutor(processes) as pool:
        runs = [*track(pool.map(run_chunk, firsts), "worlds", len(firsts), transient=True)]
    failed = [done for done in runs if done.returncode]
    for done in failed:
        print(done.stdout + done.stderr)
    took_s = time.monotonic() - began
    a_minute = 60 * len(seeds) / took_s
    print(f"{len(seeds)} worlds in {took_s:.0f} s, {a_minute:.0f} a minute; {len(failed)} runs failed")
    return 1 if failed else 0


def show(outcome: Outcome) -> None:
    """Print a failure."""
    print(outcome.plan)
    print("\n".join(outcome.trace[-SHOWN:]))
    for fault in outcome.faults[:10]:
        print(fault)
