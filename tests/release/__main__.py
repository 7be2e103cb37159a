"""`python -m tests.release VERB`: see the docstring of the package."""

import argparse
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from tests.agent.fakes import Service
from tests.postgres import running
from tests.release import check, snapshot


def main() -> int:
    """Run a verb; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.release")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("write", help="store the contract of this version")
    verbs.add_parser("compare", help="print what breaks the contract of a release")
    verbs.add_parser("check", help="print what is missing for a release, and write its notes")
    verb = parser.parse_args().verb
    return {"write": _write, "compare": _compare, "check": _check}[verb]()


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


def _check() -> int:
    with tempfile.TemporaryDirectory() as folder:
        service = Service(Path(folder))
        documented = service.app.openapi()["info"]["version"]
        service.close()
    candidate = check.Candidate(
        root=snapshot.ROOT,
        installed=metadata.version("armwise"),
        documented=documented,
        contract=_present(),
        today=datetime.now(UTC).date(),
        auditor=snapshot.ROOT / ".venv-audit/bin/python",
    )
    found = check.problems(candidate)
    for one in found:
        sys.stdout.write(f"- {one}\n")
    if found:
        sys.stdout.write(f"{len(found)} problems before the release of {candidate.version}\n")
        return 1
    notes = check.write_notes(candidate).relative_to(snapshot.ROOT)
    sys.stdout.write(
        f"{candidate.version} can be released: git tag --annotate v{candidate.version} "
        f"--file {notes} --cleanup=verbatim\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
