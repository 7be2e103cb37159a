"""Plain technical English: words that stand for a term of the field do not come back.

CONTRIBUTING.md has the terms that are written instead.
"""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]

WORDS = {
    "whoever": "the learner, the caller, a replica",
    "tell": "report, return, show; a progress callback is `on_progress`",
    "tells": "reports, returns, shows",
    "told": "reported; `params`",
    "heard": "applied, received",
    "hears": "applies, receives",
    "lookout": "version watcher",
    "hired": "worker pool",
    "outset": "snapshot",
    "in force": "active",
    "until another word": "until the next promote or rollback",
    "gives way": "lowers its priority",
}
"""What is not written, and what is written instead."""

EXEMPT = {
    "CONTRIBUTING.md": "lists the words",
}

PAGES = [
    *(
        path
        for package in ("agent", "arms", "feedback", "examples")
        for path in (ROOT / package).rglob("*.py")
    ),
    *(path for name in ("agent", "examples") for path in (ROOT / name).rglob("*.html")),
    *(path for path in (ROOT / "docs").rglob("*.md")),
    *ROOT.glob("*.md"),
]


def words_in(text: str) -> list[str]:
    """Return the words of the list that a text contains, in identifiers too.

    `.tell()` of a file is not one, nor is what cannot be told apart.

    >>> words_in("def told(): return file.tell()")
    ['told']
    >>> words_in("two arms cannot be told apart")
    []
    >>> words_in("retell, the_told_words, storyteller")
    ['told']
    """
    plain = text.replace(".tell()", "").replace("_", " ").lower().replace("told apart", "")
    return [word for word in WORDS if re.search(rf"\b{word}\b", plain)]


def test_pages_are_written_in_the_terms_of_the_field() -> None:
    assert len(PAGES) > 500
    found = [
        f"{name}: {word!r}: write {WORDS[word]}"
        for path in PAGES
        if (name := str(path.relative_to(ROOT))) not in EXEMPT
        for word in words_in(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


def test_every_setting_is_described_by_a_sentence_that_says_what_it_is() -> None:
    """The reference has a description in the last column of each row."""
    rows = [
        (page.stem, *re.split(r"(?<!\\)\|", line)[1:-1:3])
        for page in (ROOT / "docs/reference/configuration").glob("*.md")
        for line in page.read_text(encoding="utf-8").splitlines()
        if re.match(r"\| `\w+` \| .* \| .* \|", line)
    ]
    assert len(rows) > 400
    wrong = re.compile(r"^ *$|^ (Of|Its|No|None|Never) |[^.] $|\b(is|are) no\b|likewise")
    found = [f"{page}: {key}:{about}" for page, key, about in rows if wrong.search(about)]
    assert not found, "\n".join(found)


def test_a_description_begins_with_what_it_describes_and_not_with_whose_it_is() -> None:
    """As "Seed that shuffles questions into folds." and not "Of the folds."."""
    begins = re.compile(
        r"""^\s+[a-z_]+:[ ](?:Of|Its)[ ]        # an attribute or an argument in a docstring
        |\"\"\"(?:Of|Its)[ ]                    # a constant
        |(?:description|help)=f?"(?:Of|Its)[ ]  # a setting or an option""",
        re.MULTILINE | re.VERBOSE,
    )
    found = [
        f"{path.relative_to(ROOT)}: {match[0].strip()}"
        for path in PAGES
        if path.suffix == ".py"
        for match in begins.finditer(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)
