"""Run the tests as on other machines: `python -m tests.anywhere [--numeric] [NAME ...]`.

Each run is a clone in a folder of its own, whose path has a blank, an umlaut and the name of the product, in
the environment of here: the quick tests, and the slow ones of the rooms whose numbers depend on the kernel of
BLAS. `--numeric` runs those rooms, and no others.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.other_users import AS_NOBODY, NOBODY, nobody_may_run

ROOT = Path(__file__).parents[2]

NUMERIC = (
    *("tests/feedback/ope", "tests/feedback/drift", "tests/agent/policies", "tests/agent/proof"),
    *("tests/agent/evaluation", "tests/agent/learning/test_rebuild.py"),
    *(
        "tests/agent/learning/test_verify.py",
        "tests/agent/lab/routers/test_ridge.py",
        "tests/agent/test_shown_intervals.py",
        "tests/arms/lab/portfolio",
        "tests/comparison",
        "armwise/feedback/ope",
        "armwise/agent/policies",
    ),
)
"""Where numbers come out of products of matrices."""


@dataclass(frozen=True)
class Machine:
    """A machine on which the tests are run.

    Attributes:
        variables: Variables of its environment.
        umask: Umask of the process.
        files: Open files at most, hard and soft; None for the limit of here.
        nobody: Whether a user runs them who owns the clone and nothing else; root alone can.
    """

    variables: Mapping[str, str] = field(default_factory=dict)
    umask: int = 0o022
    files: int | None = None
    nobody: bool = False


MACHINES = {
    "haswell": Machine({"OPENBLAS_CORETYPE": "Haswell", "TZ": "Asia/Kathmandu", "LC_ALL": "C"}),
    "nehalem": Machine({"OPENBLAS_CORETYPE": "Nehalem"}, umask=0o077),
    "sandybridge": Machine({"OPENBLAS_CORETYPE": "Sandybridge", "LC_ALL": "POSIX"}, umask=0o000),
    "nobody": Machine({"HOME": "HOME"}, files=1024, nobody=True),
}
"""By name. What is asked of a kernel, an old processor's, works on each later one."""


def main() -> int:
    """Run the tests on each machine, print a line each; return 1 where any failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.anywhere", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(MACHINES)}; else all")
    parser.add_argument("--numeric", action="store_true", help="the rooms of numbers alone")
    wanted = parser.parse_args()
    if unknown := set(wanted.names) - set(MACHINES):
        parser.error(f"{', '.join(sorted(unknown))}: one of {', '.join(MACHINES)} was expected")
    failed = []
    for name in wanted.names or MACHINES:
        machine = MACHINES[name]
        if machine.nobody and not nobody_may_run(sys.executable):
            sys.stdout.write(
                f"{name}: left out, that user may not run {sys.executable}, or this one is not root\n"
            )
            continue
        status = 0 if wanted.numeric else run(machine, "not slow")
        status = status or run(machine, "not nightly" if wanted.numeric else "slow and not nightly", NUMERIC)
        sys.stdout.write(f"{name}: {'passed' if status == 0 else f'FAILED with {status}'}\n")
        sys.stdout.flush()
        failed += [name] if status else []
    return 1 if failed else 0


def run(machine: Machine, marks: str, rooms: tuple[str, ...] = ()) -> int:
    """Clone, and run the tests with these marks, all or of some rooms; return the exit code of pytest."""
    with tempfile.TemporaryDirectory(prefix="tests änywhere ", dir="/tmp") as folder:  # others may enter it
        os.chmod(folder, 0o755)
        clone, home = Path(folder) / "armwise", Path(folder) / "höme"
        home.mkdir()
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        (clone / ".venv").symlink_to(Path(sys.executable).parents[1])
        prefix: list[str] = []
        if machine.nobody:
            subprocess.run(["chown", "-R", f"{NOBODY}:{NOBODY}", folder], check=True)
            prefix = [*AS_NOBODY]
        if machine.files:
            prefix = ["prlimit", f"--nofile={machine.files}:{machine.files}", *prefix]
        variables = {name: value.replace("HOME", str(home)) for name, value in machine.variables.items()}
        # a kernel differs in all or none of the examples, and on either database
        few = ["--hypothesis-profile=few", "-k", "not postgresql"] if rooms else []
        tests = ["-m", "pytest", "-q", "-n", "auto", "--dist", "loadfile", "-m", marks, *few, *rooms]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
        environment.pop("PYTHONPATH", None)  # of the clone that starts this
        return subprocess.run(
            [*prefix, str(clone / ".venv" / "bin" / "python"), *tests],
            cwd=clone,
            env=environment,
            umask=machine.umask,
            check=False,
        ).returncode


if __name__ == "__main__":
    sys.exit(main())
