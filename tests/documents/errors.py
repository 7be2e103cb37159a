"""The page of the errors."""

from collections.abc import Iterator

from armwise.agent.api.errors import ERRORS


def page() -> str:
    """Return a Markdown page of the table."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# Errors"
    yield ""
    yield "Every unsuccessful response has [a body](http.md#errors) with a `code` from this page. Each entry"
    yield "says what happened and what to do. [Every 503](failures.md#every-503) lists the causes of a 503."
    for title, retryable in (("Do not retry", False), ("Retry later", True)):
        yield ""
        yield f"## {title}"
        yield ""
        for kind in ERRORS.values():
            if kind.retryable is retryable:
                yield f"- `{kind.code}` ({kind.status}): {kind.when}"
