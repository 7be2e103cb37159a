"""What a check found."""

import ipaddress
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is open or wrong.

    Attributes:
        what: What was found; one sentence.
        remedy: What would be right.
        serious: Whether others can read, change or stop something because of it; otherwise a remark.
    """

    what: str
    remedy: str
    serious: bool = True

    def __str__(self) -> str:
        """Return it as a line.

        >>> str(Finding("no keys", "declare `keys`"))
        'problem: no keys; declare `keys`'
        """
        return f"{'problem' if self.serious else 'note'}: {self.what}; {self.remedy}"


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine alone; names other than localhost are not resolved.

    >>> [is_loopback(host) for host in ("127.0.0.1", "::ffff:127.0.0.1", "0.0.0.0", "db.internal")]
    [True, True, False, False]
    """
    try:
        found = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return host == "localhost"
    return (getattr(found, "ipv4_mapped", None) or found).is_loopback
