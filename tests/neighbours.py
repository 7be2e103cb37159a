"""A corpus of twelve passages, each of which says what stands beside its subject."""

import json
from pathlib import Path

SUBJECTS = (
    "river",
    "sea",
    "mountain",
    "bridge",
    "city",
    "king",
    "queen",
    "moon",
    "star",
    "poet",
    "ship",
    "wall",
)


def write_corpus(path: Path) -> Path:
    """Write it as JSON lines, and return where it is."""
    rows = [
        {"id": f"p{i}", "title": subject, "text": f"The {subject} stands beside the {SUBJECTS[i - 1]}."}
        for i, subject in enumerate(SUBJECTS)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
