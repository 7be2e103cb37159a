"""What a check found."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is open or wrong; without a remedy, something that is as it should be.

    Attributes:
        what: What was found; one sentence.
        remedy: What would be right; empty where nothing is wrong.
        serious: Whether others can read, change or stop something because of it, or the service would not
            start or would lose something; otherwise a remark.
    """

    what: str
    remedy: str = ""
    serious: bool = True

    @property
    def level(self) -> str:
        """`problem`, `note` or `fine`."""
        return "fine" if not self.remedy else "problem" if self.serious else "note"

    def __str__(self) -> str:
        """Return it as a line.

        >>> str(Finding("no keys", "declare `keys`")), str(Finding("Python 3.11.2"))
        ('problem: no keys; declare `keys`', 'fine: Python 3.11.2')
        """
        return f"{self.level}: {self.what}" + (f"; {self.remedy}" if self.remedy else "")
