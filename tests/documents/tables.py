"""Tables of pages that are otherwise written by hand."""

from collections.abc import Sequence


def with_table(page: str, table: Sequence[str]) -> str:
    r"""Return a page with a table in place of its table of the same head.

    Args:
        page: Markdown.
        table: Lines of the table, the head first.

    Raises:
        ValueError: The page has no table of this head.

    >>> with_table("A:\n\n| a |\n| - |\n| 1 |\n\nEnd.\n", ["| a |", "| - |", "| 2 |"])
    'A:\n\n| a |\n| - |\n| 2 |\n\nEnd.\n'
    """
    lines = page.splitlines()
    if table[0] not in lines:
        raise ValueError(f"the page has no table that begins with {table[0]!r}")
    first = lines.index(table[0])
    last = next((at for at in range(first, len(lines)) if not lines[at].startswith("|")), len(lines))
    return "\n".join([*lines[:first], *table, *lines[last:]]) + "\n"
