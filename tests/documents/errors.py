"""The page of the errors: the table has their codes and statuses, the page what happened and what to do."""

import re
from collections.abc import Iterator
from pathlib import Path

from armwise.agent.api.errors import ERRORS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "errors.md"

ENTRY = re.compile(r"^- `(\w+)` \(\d+\): (.+)$", re.MULTILINE)


def page() -> str:
    """Return the page with the entries of the table, each with the explanation that it has on the page.

    Raises:
        ValueError: An error has no explanation, or two.
    """
    text = PAGE.read_text(encoding="utf-8")
    explained = ENTRY.findall(text)
    if missing := sorted(ERRORS.keys() ^ {code for code, _ in explained}) or len(explained) != len(ERRORS):
        raise ValueError(f"{PAGE.name} explains each error of the table once: {missing}")
    return text.partition("\n## ")[0] + "\n".join(_entries(dict(explained))) + "\n"


def _entries(explained: dict[str, str]) -> Iterator[str]:
    for title, retryable in (("Do not retry", False), ("Retry later", True)):
        yield f"\n## {title}\n"
        for kind in ERRORS.values():
            if kind.retryable is retryable:
                yield f"- `{kind.code}` ({kind.status}): {explained[kind.code]}"
