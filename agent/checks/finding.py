"""What a check found."""

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
