"""Which decisions of a log are selected."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime


@dataclass(frozen=True, slots=True)
class Selection:
    """Which decisions of a log are selected; the default selects all.

    Attributes:
        since: Decided at this time or later, seconds since the epoch, UTC.
        until: Decided before this time, seconds since the epoch, UTC.
        versions: Drawn by one of these versions; empty for any.
        policies: Drawn by one of these kinds of policy; empty for any.
        features: Named features that the context has with these values; one it lacks counts as 0.
    """

    since: float | None = None
    until: float | None = None
    versions: tuple[int, ...] = ()
    policies: tuple[str, ...] = ()
    features: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise ValueError(f"the window from {shown(self.since)} to {shown(self.until)} is empty")

    def __str__(self) -> str:
        """Return the selection as text.

        >>> str(Selection(until=0.0, versions=(3, 4), features={"tier=free": 1.0}))
        'until 1970-01-01T00:00:00Z, versions 3, 4, tier=free is 1'
        """
        parts = [
            *([f"since {shown(self.since)}"] if self.since is not None else []),
            *([f"until {shown(self.until)}"] if self.until is not None else []),
            *([f"versions {', '.join(map(str, self.versions))}"] if self.versions else []),
            *([f"policies {', '.join(self.policies)}"] if self.policies else []),
            *(f"{name} is {value:g}" for name, value in self.features.items()),
        ]
        return ", ".join(parts) or "all decisions"


def shown(at: float) -> str:
    """Return seconds since the epoch as a date and a time, UTC.

    >>> shown(1.5)
    '1970-01-01T00:00:01.500Z'
    """
    moment = datetime.fromtimestamp(at, UTC)
    return moment.isoformat(timespec="milliseconds" if at % 1 else "seconds").replace("+00:00", "Z")
