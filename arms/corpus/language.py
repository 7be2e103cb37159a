"""Write the reference of the running interpreter's language as JSON lines.

`armwise.arms.corpus.readers` runs this file as a program, as it does `armwise.arms.corpus.stdlib`. It imports
nothing of this project.

Each line is `{"id": "lambda", "title": "Lambdas", "text": ...}`: a topic of `help()`. Topics repeat one
another: `compound` holds `if`, `for` and `with`. A section is written once, in the shortest topic with it.
"""

import importlib
import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

HEADING = re.compile(r"^(\S.*)\n([*=~^-])\2{2,}$", re.MULTILINE)
"""A line above a line of one character: which character depends on the topic that has the section."""


class Section(NamedTuple):
    """A heading, empty before the first, and the text up to the next one."""

    heading: str
    body: str


class Topic(NamedTuple):
    """What `help(name)` shows, less what a shorter topic has."""

    name: str
    title: str
    text: str


def sections(text: str) -> list[Section]:
    r"""Return the sections of a topic.

    >>> sections("Lambdas\n*******\n\nA function.")
    [Section(heading='Lambdas', body='A function.')]
    """
    headings = list(HEADING.finditer(text))
    before = text[: headings[0].start()] if headings else text
    ends = [*(match.start() for match in headings[1:]), len(text)]
    below = (
        [
            Section(match[1], text[match.end() : end].strip())
            for match, end in zip(headings, ends, strict=True)
        ]
        if headings
        else []
    )
    return [Section("", before.strip()), *below] if before.strip() else below


def topics(texts: Mapping[str, str]) -> Iterator[Topic]:
    """Yield the topics by name, each without the sections of shorter ones, and none that has no others."""
    by_name = {name: sections(text) for name, text in texts.items()}

    def rank(name: str) -> tuple[int, bool, str]:
        # `if` and `else` are the same text, which is headed 'The "if" statement'
        return len(texts[name]), f'"{name}"' not in texts[name].partition("\n")[0], name

    owner: dict[Section, str] = {}
    for name in sorted(by_name, key=rank):
        for section in by_name[name]:
            owner.setdefault(section, name)
    for name, all_of_it in sorted(by_name.items()):
        owned_sections = [section for section in all_of_it if owner[section] == name]
        text = "\n\n".join(filter(None, itertools.chain.from_iterable(owned_sections)))
        if any(section.body for section in owned_sections):
            yield Topic(name, all_of_it[0].heading or name, text)


def main() -> None:
    """Write every topic to standard output."""
    module = importlib.import_module("pydoc_data.topics")  # it has no type stubs
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        for topic in topics(module.topics):
            out.write(json.dumps({"id": topic.name, "title": topic.title, "text": topic.text}) + "\n")


if __name__ == "__main__":
    main()
