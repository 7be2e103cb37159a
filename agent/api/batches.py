"""Batches whose items are kept by themselves: ids of items, replies, and what is said where none was kept."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from armwise.agent.api.errors import ApiError

Receipt = TypeVar("Receipt")


def name_items(items: Sequence[object], key: str | None) -> list[str | None]:
    """Return the ids of items that have none of their own: the key of the request with their index from 0.

    >>> name_items("ab", "k"), name_items("ab", None)
    (['k:0', 'k:1'], [None, None])
    """
    return [None if key is None else f"{key}:{index}" for index in range(len(items))]


def some_kept(rows: list[Receipt | ApiError]) -> list[Receipt | ApiError]:
    """Return what became of each item. Raises ApiError where none was kept."""
    failures = [row for row in rows if isinstance(row, ApiError)]
    if len(failures) == len(rows):
        raise _refusal(failures)
    return rows


def replies(rows: Sequence[Receipt | ApiError]) -> list[Any]:
    """Return what became of each item as it is sent: its receipt, or the envelope of its error."""
    return [row.envelope(None) if isinstance(row, ApiError) else row for row in rows]


def _refusal(failures: Sequence[ApiError]) -> ApiError:
    """Return the error for a batch of which nothing was kept: one that may pass later, or the first item's.

    Args:
        failures: The error of each item, in order.
    """
    passing = (index for index, error in enumerate(failures) if error.retryable)
    index = next(passing, 0)
    failure = failures[index]
    param = f"items.{index}" if failure.param is None else f"items.{index}.{failure.param}"
    reasons = [f"items.{n}: {error.code}: {error.message}" for n, error in enumerate(failures)]
    message = f"no item was kept; items.{index}: {failure.message}"
    return replace(failure, message=message, param=None if failure.retryable else param, reasons=reasons)
