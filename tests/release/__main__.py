"""`python -m tests.release VERB`: see the docstring of the package."""

import argparse
import subprocess
import sys
import tempfile
from importlib import metadata

from tests.postgres import running
from tests.release import snapshot


def main() -> int:
    """Run a verb; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.release")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("write", help="store the contract of this version")
    verbs.add_parser("compare", help="print what breaks the contract of a release")
    verb = parser.parse_args().verb
    return {"write": _write, "compare": _compare}[verb]()


def _write() -> int:
    version = metadata.version("armwise")
    tagged = subprocess.run(
        ["git", "tag", "--list", f"v{version}"], cwd=snapshot.ROOT, capture_output=True, text=True, check=True
    )
    if tagged.stdout.strip():
        sys.stderr.write(f"v{version} is released: its snapshot stays as it is; give this version a number\n")
        return 1
    sys.stdout.write(f"{snapshot.write().relative_to(snapshot.ROOT)}\n")
    return 0


def _present() -> snapshot.Contract:
    with tempfile.TemporaryDirectory() as empty, running(in_memory=True) as server:
        return snapshot.present(f"sqlite:///{empty}/shape.db", server.fresh())


def _compare() -> int:
    present = _present()
    known = snapshot.accepted()
    found = [
        (version, one)
        for version in snapshot.versions()
        for one in snapshot.breaks(snapshot.stored(version), present)
        if (version, one) not in known
    ]
    for version, one in found:
        sys.stdout.write(f"{version}: {one}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
