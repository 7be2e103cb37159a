"""Sentences of a passage, the names and dates in them, and what a first sentence defines.

These are patterns of written English, no parse: a sentence that fits none of them is left out.
"""

import re
from dataclasses import dataclass

from arms.tokenizer import ENGLISH

_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[]?[A-Z0-9])|\n\s*\n")

_ABBREVIATION = re.compile(
    r"(?:\b(?:[A-Z]|Mr|Mrs|Ms|Dr|St|Jr|Sr|No|vs|etc|e\.g|i\.e|c|ca|r|b|d|Inc|Co|Ltd|Mt)\.)$"
)

_ASIDE = re.compile(r"\([^()]*\)|\[[^\][]*\]")

_DATE = re.compile(
    r"\b(?:(?:\d{1,2} )?"
    r"(?:January|February|March|April|May|June|July|August|September|October|November|December)"
    r"(?: \d{1,2}(?:st|nd|rd|th)?)?,? )?(?:1[0-9]{3}|20[0-9]{2})\b(?![-\d])"
)

_NAME = re.compile(
    r"\b[A-Z][\w'\u2019.-]*(?:(?: (?:of|the|de|von|van|da|du|la|le|and|for))* [A-Z][\w'\u2019.-]*)*",
    re.UNICODE,
)

_NUMBER = re.compile(
    r"(?<![\w.,$-])\d[\d,]*(?:\.\d+)?(?: (?:million|billion|thousand|percent|per cent))?%?(?![\w])"
)

_DEFINED = re.compile(
    r"^(?P<subject>[^,;:]{2,80}?),?(?:,[^,]{1,60},)? (?:is|was|are|were) (?:[a-z]+ly )?"
    r"(?P<what>(?:an?|the|one of the) .+)$"
)

_KIND_ENDS = re.compile(
    r"\b(?:of|in|by|from|for|at|on|that|which|who|whose|where|with|and|or|to|as|known|used|located|based|"
    r"born|written|directed|produced|released|published|founded|created|performed)\b|[,.;:(]"
)


@dataclass(frozen=True, slots=True)
class Span:
    """A name, date or number in a sentence.

    Attributes:
        start: Where it begins.
        end: Where it ends.
        kind: `name`, `date` or `number`.
    """

    start: int
    end: int
    kind: str


@dataclass(frozen=True, slots=True)
class Definition:
    """What a passage says its subject is.

    Attributes:
        what: The rest of the sentence, with its article: `an American film of 2006 about baseball`.
        kind: The noun phrase at its start: `American film`.
    """

    what: str
    kind: str

    @property
    def noun(self) -> str:
        """The last word of the kind: `film`."""
        return self.kind.rpartition(" ")[2]


def sentences(text: str) -> list[str]:
    """Return the sentences of a text, without what stands in brackets.

    >>> sentences("Mr. Smith (a judge) left. He went to St. Ives.")
    ['Mr. Smith left.', 'He went to St. Ives.']
    """
    found: list[str] = []
    for part in _END.split(_ASIDE.sub("", text)):
        part = " ".join(part.split()).replace(" ,", ",").replace(" .", ".")
        if found and _ABBREVIATION.search(found[-1]):
            found[-1] = f"{found[-1]} {part}"
        elif part:
            found.append(part)
    return found


def spans(sentence: str) -> list[Span]:
    """Return the names, dates and numbers of a sentence, in order.

    A capital letter at the start of the sentence makes no name of one word.

    >>> [(sentence[s.start : s.end], s.kind) for sentence in ["In May 1889 Eiffel built 2 towers in Paris."]
    ...  for s in spans(sentence)]
    [('May 1889', 'date'), ('Eiffel', 'name'), ('2', 'number'), ('Paris', 'name')]
    """
    found = [Span(match.start(), match.end(), "date") for match in _DATE.finditer(sentence)]
    for match in _NAME.finditer(sentence):
        text = match[0].rstrip(".'\u2019-")
        first = text.partition(" ")[0]
        start, end = match.start(), match.start() + len(text)
        if first.lower() in ENGLISH or (start == 0 and " " not in text):
            continue
        if not any(start < other.end and other.start < end for other in found):
            found.append(Span(start, end, "name"))
    for match in _NUMBER.finditer(sentence):
        if not any(match.start() < other.end and other.start < match.end() for other in found):
            found.append(Span(match.start(), match.end(), "number"))
    return sorted(found, key=lambda span: span.start)


def definition(text: str) -> Definition | None:
    """Return what the first sentence of a passage says that its subject is; None where it does not.

    >>> definition("Faust (1808) is a tragic play in two parts by Goethe. It is long.")
    Definition(what='a tragic play in two parts by Goethe', kind='tragic play')
    """
    first = next(iter(sentences(text[:600])), "").rstrip(".")
    if (match := _DEFINED.match(first)) is None:
        return None
    what = match["what"]
    _, _, rest = what.partition(" ")
    kind = _KIND_ENDS.split(rest, maxsplit=1)[0].strip()
    words = kind.split()
    return Definition(what, kind) if 0 < len(words) <= 6 and words[-1].isalpha() else None
