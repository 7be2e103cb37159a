"""The caller of a request: what its key allows, and which ids are its own."""

import re
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import get_args

from agent.config import Scope
from feedback.registry import KeyLimits, keys

SCOPES: tuple[Scope, ...] = get_args(Scope)

IMPLIED: dict[Scope, tuple[Scope, ...]] = {"operate": ("read",), "admin": SCOPES}
"""Scopes that another one includes."""

PROJECT = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")

LONGEST = {"feedback": 256}
"""Characters of an id in the log, where it is not 128."""


class ForeignIdError(ValueError):
    """An id names a project that is not the caller's, or is too long for the log."""


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller, by its key.

    Attributes:
        key: Public id of the key; None where the service is open.
        scopes: What it may do, implied scopes included.
        project: Owner of what it makes and reads.
        source: Who judges with the key; None where the service is open.
        expires: When the key ceases to be valid, seconds since the epoch; None for never.
        limits: What it may use.
        point: The decision point that the request is for; empty for the default one.
        points: Names of the others, which no id of the default point begins with.
        groups: Whose passages it may see, beside those for everybody; none where the service is open.
    """

    key: str | None
    scopes: frozenset[Scope]
    project: str = keys.DEFAULT
    source: str | None = None
    expires: float | None = None
    limits: KeyLimits = keys.UNLIMITED
    point: str = ""
    points: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()

    def at(self, point: str, points: frozenset[str]) -> "Caller":
        """Return the same caller at a decision point; empty for the default one."""
        return replace(self, point=point, points=points)

    @property
    def prefix(self) -> str:
        """What its ids begin with in the log.

        >>> Caller("k", frozenset(), "acme").prefix, Caller("k", frozenset()).prefix
        ('acme~', '')
        """
        return "" if self.project == keys.DEFAULT else self.project + keys.SEPARATOR

    @property
    def sees_all(self) -> bool:
        """Whether it reads the decisions of every project, by their ids in the log."""
        return "admin" in self.scopes

    def stored(self, name: str, kind: str = "decision") -> str:
        """Return the id in the log of what the caller names; the log is that of its point.

        Args:
            name: The id that it sent.
            kind: What it is the id of: a decision, an episode or feedback.

        Raises:
            ForeignIdError: It names a project or a point, or is too long.

        >>> Caller("k", frozenset(), "acme").stored("d-1")
        'acme~d-1'
        >>> Caller("k", frozenset(), point="news").stored("news:d-1")
        'd-1'
        """
        head, colon, rest = name.partition(":")
        if kind != "feedback" and colon and rest and head == self.point:
            name = rest
        elif kind != "feedback" and colon and not self.point and head in self.points:
            raise ForeignIdError(f"{kind} {name!r} begins with the name of the decision point {head!r}")
        project, separator, _ = name.partition(keys.SEPARATOR)
        own = self.sees_all or self.project != keys.DEFAULT
        if not own and separator and PROJECT.fullmatch(project):
            raise ForeignIdError(f"{kind} {name!r} names a project, as only keys of scope 'admin' may")
        longest = LONGEST.get(kind, 128) - len(self.prefix)
        if len(name) > longest:
            raise ForeignIdError(f"{kind} {name!r} has {len(name)} characters: at most {longest} fit")
        return self.prefix + name

    def new_id(self) -> str:
        """Return an id of its own for the log."""
        return self.prefix + new_id()

    def shown_id(self, name: str) -> str:
        """Return the id of a decision or an episode of its point as the caller knows it.

        >>> Caller("k", frozenset(), "acme", point="news").shown_id("acme~d-1")
        'news:d-1'
        """
        return f"{self.point}:{self.shown(name)}" if self.point else self.shown(name)

    def shown(self, text: str) -> str:
        """Return an id or a message of the log as the caller knows it.

        >>> Caller("k", frozenset(), "acme").shown("'acme~d-1' is in progress")
        "'d-1' is in progress"
        """
        return text.replace(self.prefix, "") if self.prefix else text


def caller_scopes(scopes: tuple[Scope, ...]) -> frozenset[Scope]:
    """Return scopes with those that they imply.

    >>> sorted(caller_scopes(("operate",)))
    ['operate', 'read']
    """
    return frozenset(scopes).union(*(IMPLIED.get(scope, ()) for scope in scopes))


def new_id() -> str:
    """Return an id that sorts by time: 12 hexadecimal digits of milliseconds, 20 random ones."""
    return f"{time.time_ns() // 1_000_000:012x}{next(_DIGITS)}"


def _digits(at_once: int = 256) -> Iterator[str]:
    """Yield 20 random hexadecimal digits; each call of the system gives up the lock of the interpreter."""
    while True:
        random = secrets.token_hex(10 * at_once)
        yield from (random[i : i + 20] for i in range(0, len(random), 20))


_DIGITS = _digits()

OPEN = Caller(None, frozenset(SCOPES))
"""Everybody, where there are no keys."""
