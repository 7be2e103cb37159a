"""The page of the errors: `python -m tests.documents.errors > docs/reference/errors.md`."""

import sys
from collections.abc import Iterator

from armwise.agent.api.errors import ERRORS


def page() -> Iterator[str]:
    """Yield the lines of a Markdown page of the table."""
    yield "# Errors"
    yield ""
    yield 'Every unsuccessful response has the body `{"error": {...}}` with a `code` from this page. Each'
    yield "entry says what happened and what to do. The field `retryable` says whether the same request may"
    yield "succeed later. It is false if the failure is recorded under your idempotency key. [Every"
    yield "503](failures.md#every-503) lists the causes of a 503."
    for title, retryable in (("Do not retry", False), ("Retry later", True)):
        yield ""
        yield f"## {title}"
        yield ""
        for kind in ERRORS.values():
            if kind.retryable is retryable:
                yield f"- `{kind.code}` ({kind.status}): {kind.when}"


if __name__ == "__main__":
    sys.stdout.write("\n".join(page()) + "\n")
