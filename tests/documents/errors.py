"""The page of the errors: `python -m tests.documents.errors > docs/reference/errors.md`."""

import sys
from collections.abc import Iterator

from armwise.agent.api.errors import ERRORS


def page() -> Iterator[str]:
    """Yield the lines of a Markdown page of the table."""
    yield "# Errors"
    yield ""
    yield 'Every unsuccessful response has the body `{"error": {...}}` with a `code` from this page. The'
    yield "field `retryable` says whether the same request may succeed later. It is false for a failure that"
    yield "is recorded under an idempotency key. [Every 503](failures.md#every-503) lists the reasons for a"
    yield "503 and what to do."
    for title, retryable in (("Do not retry", False), ("Retry later", True)):
        yield ""
        yield f"## {title}"
        yield ""
        for kind in ERRORS.values():
            if kind.retryable is retryable:
                yield f"- `{kind.code}` ({kind.status}): {kind.when}"


if __name__ == "__main__":
    sys.stdout.write("\n".join(page()) + "\n")
