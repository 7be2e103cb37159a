"""Read CHANGELOG.md: its sections in the form of Keep a Changelog, and the notes of a release."""

import re
from dataclasses import dataclass
from datetime import date

KINDS = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
"""Headings of a section."""

UNRELEASED = "Unreleased"


@dataclass(frozen=True)
class Section:
    """What the changelog has of a version.

    Attributes:
        version: As in its heading, `Unreleased` for what no version has.
        day: What stands after the version; empty for nothing.
        text: The lines below the heading.
    """

    version: str
    day: str
    text: str

    @property
    def date(self) -> date | None:
        """The day, None where it is not one as `2026-11-25`."""
        if not re.fullmatch(r"\d{4}-\d\d-\d\d", self.day):
            return None
        try:
            return date.fromisoformat(self.day)
        except ValueError:
            return None

    @property
    def kinds(self) -> list[str]:
        """Its headings."""
        return re.findall(r"^### (.*)$", self.text, re.MULTILINE)


def sections(text: str) -> list[Section]:
    r"""Return the sections of a changelog, as they stand in it.

    >>> sections("# Changelog\n\n## 0.1.0 - 2026-11-25\n\nThe first.\n")
    [Section(version='0.1.0', day='2026-11-25', text='The first.')]
    """
    _, *parts = re.split(r"^## ", text, flags=re.MULTILINE)
    found = []
    for part in parts:
        heading, _, body = part.partition("\n")
        version, _, day = heading.partition(" - ")
        found.append(Section(version.strip().strip("[]"), day.strip(), body.strip()))
    return found


def problems(text: str, version: str, today: date) -> list[str]:
    """Return what a release of a version lacks in a changelog, with what would be right.

    Args:
        text: The changelog.
        version: The version that is to be released.
        today: The day of the release at the latest.
    """
    heading = f"`## {version} - {today}`"
    waiting, others = [], sections(text)
    if others and others[0].version == UNRELEASED:
        waiting, others = others[:1], others[1:]
    if not others or others[0].version != version:
        first = others[0].version if others else "nothing"
        return [f"CHANGELOG.md begins with {first}: write the section {heading}"]
    section, *earlier = others
    found = [f"CHANGELOG.md has unreleased changes: move them into {heading}" for one in waiting if one.text]
    if section.date is None:
        found.append(f"CHANGELOG.md has {section.day or 'no date'!r} for {version}: write {heading}")
    elif section.date > today:
        found.append(f"CHANGELOG.md dates {version} in the future, {section.day}: write {heading}")
    elif earlier and earlier[0].date is not None and section.date < earlier[0].date:
        found.append(f"CHANGELOG.md dates {version} before {earlier[0].version}: write {heading}")
    if not section.text:
        found.append(f"CHANGELOG.md has nothing below {heading}: write what a user notices")
    return found + [
        f"CHANGELOG.md has the heading {kind!r} below {version}: use one of {', '.join(KINDS)}"
        for kind in section.kinds
        if kind not in KINDS
    ]


def notes(text: str, version: str) -> str:
    """Return the notes of a version, as the message of an annotated tag.

    Raises:
        LookupError: The changelog has no section of the version.
    """
    for section in sections(text):
        if section.version == version:
            return f"Armwise {version}\n\n{section.text}\n"
    raise LookupError(f"CHANGELOG.md has no section of {version}")
