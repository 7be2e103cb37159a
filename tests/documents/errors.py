"""The page of the errors: `python -m tests.documents.errors > docs/reference/errors.md`."""

import sys
from collections.abc import Iterator

from armwise.agent.api.errors import ERRORS


def page() -> Iterator[str]:
    """Yield the lines of a Markdown page of the table."""
    yield "# Errors"
    yield ""
    yield 'The body of a response that is not a success is `{"error": {...}}`, with one of these codes.'
    yield "A failure that is recorded under an idempotency key is never `retryable`, whatever its code."
    yield "[Every 503](failures.md#every-503) has the reasons behind a 503, and what to do."
    yield ""
    yield "| code | status | retryable | when |"
    yield "| --- | --- | --- | --- |"
    for kind in ERRORS.values():
        yield f"| `{kind.code}` | {kind.status} | {'yes' if kind.retryable else 'no'} | {kind.when} |"


if __name__ == "__main__":
    sys.stdout.write("\n".join(page()) + "\n")
