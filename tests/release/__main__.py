"""`python -m tests.release` prints what is missing for a release; if nothing is, it writes the notes."""

import sys
import tempfile
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from tests.agent.fakes import Service
from tests.release import check

ROOT = Path(__file__).parents[2]


def main() -> int:
    """Check this tree; return the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        service = Service(Path(folder))
        documented = service.app.openapi()["info"]["version"]
        service.close()
    candidate = check.Candidate(
        root=ROOT,
        installed=metadata.version("armwise"),
        documented=documented,
        today=datetime.now(UTC).date(),
        auditor=ROOT / ".venv-audit/bin/python",
    )
    found = check.problems(candidate)
    for one in found:
        sys.stdout.write(f"- {one}\n")
    if found:
        sys.stdout.write(f"{len(found)} problems before the release of {candidate.version}\n")
        return 1
    notes = check.write_notes(candidate).relative_to(ROOT)
    sys.stdout.write(
        f"{candidate.version} can be released: git tag --annotate v{candidate.version} "
        f"--file {notes} --cleanup=verbatim\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
