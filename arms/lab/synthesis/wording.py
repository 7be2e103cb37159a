"""Turn statements into questions for a name, date or number in them.

The rules are for English sentences with the subject before the verb: an auxiliary verb moves to the front, a
past tense takes `did`. Regular expressions find sentences, names, dates, verbs and the definition in a first
sentence; a sentence that matches none is skipped.

Source: Heilman and Smith 2010, Good question! Statistical ranking for question generation, whose rules
transform a parse; here patterns of words stand in for it.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass

from armwise.arms.tokenizer import ENGLISH

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
class NamedSpan:
    """A name, date or number in a sentence.

    Attributes:
        start: First character.
        end: Character after the last.
        kind: `name`, `date` or `number`.
    """

    start: int
    end: int
    kind: str


@dataclass(frozen=True, slots=True)
class SubjectDefinition:
    """The definition of a passage's subject in its first sentence.

    Attributes:
        what: The predicate, with its article: `an American film of 2006 about baseball`.
        kind: The noun phrase at its start: `American film`.
    """

    what: str
    kind: str

    @property
    def noun(self) -> str:
        """The last word of the kind: `film`."""
        return self.kind.rpartition(" ")[2]


def sentences(text: str) -> list[str]:
    """Return the sentences of a text; text in brackets is removed.

    >>> sentences("Mr. Smith (a judge) left. He went to St. Ives.")
    ['Mr. Smith left.', 'He went to St. Ives.']
    """
    kept: list[str] = []
    for part in _END.split(_ASIDE.sub("", text)):
        part = " ".join(part.split()).replace(" ,", ",").replace(" .", ".")
        if kept and _ABBREVIATION.search(kept[-1]):
            kept[-1] = f"{kept[-1]} {part}"
        elif part:
            kept.append(part)
    return kept


def spans(sentence: str) -> list[NamedSpan]:
    """Return the names, dates and numbers of a sentence, in order.

    A single capitalised word at the start of the sentence is not taken for a name.

    >>> [(sentence[s.start : s.end], s.kind) for sentence in ["In May 1889 Eiffel built 2 towers in Paris."]
    ...  for s in spans(sentence)]
    [('May 1889', 'date'), ('Eiffel', 'name'), ('2', 'number'), ('Paris', 'name')]
    """
    dates = [NamedSpan(match.start(), match.end(), "date") for match in _DATE.finditer(sentence)]
    for match in _NAME.finditer(sentence):
        text = match[0].rstrip(".'\u2019-")
        first = text.partition(" ")[0]
        start, end = match.start(), match.start() + len(text)
        if first.lower() in ENGLISH or (start == 0 and " " not in text):
            continue
        if not any(start < other.end and other.start < end for other in dates):
            dates.append(NamedSpan(start, end, "name"))
    for match in _NUMBER.finditer(sentence):
        if not any(match.start() < other.end and other.start < match.end() for other in dates):
            dates.append(NamedSpan(match.start(), match.end(), "number"))
    return sorted(dates, key=lambda span: span.start)


def definition(text: str) -> SubjectDefinition | None:
    """Return the definition of a passage's subject, if its first sentence is one.

    >>> definition("Faust (1808) is a tragic play in two parts by Goethe. It is long.")
    SubjectDefinition(what='a tragic play in two parts by Goethe', kind='tragic play')
    """
    first = next(iter(sentences(text[:600])), "").rstrip(".")
    if (match := _DEFINED.match(first)) is None:
        return None
    what = match["what"]
    _, _, rest = what.partition(" ")
    kind = _KIND_ENDS.split(rest, maxsplit=1)[0].strip()
    words = kind.split()
    return SubjectDefinition(what, kind) if 0 < len(words) <= 6 and words[-1].isalpha() else None


_AUXILIARY = re.compile(
    r"^(?P<subject>(?:[^\s,;:]+ ){1,9}?)"
    r"(?P<verb>was|were|is|are|had|has|have|can|could|will|would|may|must) (?P<rest>.*)$"
)

_AUXILIARIES = frozenset({"was", "were", "is", "are", "had", "has", "have", "can", "could", "will", "would"})

_CLAUSE = re.compile(r"; |, (?=(?:and|but|while|although|which|who|where|whereas|because|with|including) )")

_OF_DATE = frozenset(
    {"in", "on", "since", "by", "during", "from", "until", "around", "about", "late", "early"}
)

_OF_PLACE = frozenset({"in", "at", "near"})

_ARTICLES = frozenset({"a", "an", "the"})

_PRONOUN = re.compile(r"^(?:(?P<own>His|Her|Its|Their)|He|She|It|They)\b ?")

_UNCLEAR = frozenset({"this", "these", "those", "such", "there", "however"})
"""First words of sentences that cannot be understood alone."""

IRREGULAR = {
    past: base
    for base, past in (
        *(
            ("become", "became"),
            ("begin", "began"),
            ("break", "broke"),
            ("bring", "brought"),
            ("build", "built"),
        ),
        *(("buy", "bought"), ("choose", "chose"), ("come", "came"), ("draw", "drew"), ("fall", "fell")),
        *(("fight", "fought"), ("find", "found"), ("fly", "flew"), ("get", "got"), ("give", "gave")),
        *(("go", "went"), ("grow", "grew"), ("hold", "held"), ("keep", "kept"), ("know", "knew")),
        *(("lead", "led"), ("leave", "left"), ("lose", "lost"), ("make", "made"), ("meet", "met")),
        *(("pay", "paid"), ("rise", "rose"), ("run", "ran"), ("say", "said"), ("see", "saw")),
        *(("sell", "sold"), ("send", "sent"), ("sing", "sang"), ("speak", "spoke"), ("spend", "spent")),
        *(("stand", "stood"), ("take", "took"), ("teach", "taught"), ("think", "thought")),
        *(("win", "won"), ("write", "wrote")),
    )
}

_NO_QUOTES = str.maketrans("", "", '"\u201c\u201d')

_LOST_E = re.compile(r"(?:[aiu]t|[vczu]|[^s]s|[^n]g|[bdtp]l|[io]r|[aeiou]k|[iou]d|[ui]n)$")
"""Endings of stems whose verb ends in `e`: `releas`, `mov`."""

_VOWELS = re.compile(r"(?:ee|oo|ea|ai|oi|ou|ie)[^csvz]$|(?:isit|imit)$")
"""Exceptions to `_LOST_E`: stems with two vowels, `visit`, `limit`."""

LONGEST = 24
"""Most words of a clause that is turned into a question."""


def base_form(past: str) -> str | None:
    """Return the base form of a verb in the past tense; None: the word is not such a verb.

    >>> [base_form(word) for word in ("released", "played", "carried", "stopped", "wrote", "red")]
    ['release', 'play', 'carry', 'stop', 'write', None]
    """
    if past in IRREGULAR:
        return IRREGULAR[past]
    if not past.endswith("ed") or len(past) < 5:
        return None
    stem = past[:-2]
    if stem.endswith("i"):
        return f"{stem[:-1]}y"
    if stem[-1] == stem[-2] and stem[-1] not in "lsz":
        return stem[:-1]
    if _LOST_E.search(stem) and not _VOWELS.search(stem):
        return f"{stem}e"
    return stem


def about(sentence: str, name: str) -> str | None:
    """Return a sentence with the name of its subject in place of a pronoun at its start.

    None: it begins with a word of `_UNCLEAR`, or with a pronoun while `name` is empty.

    >>> about("Its author died.", "Faust"), about("These are many.", "Faust")
    ("Faust's author died.", None)
    """
    if sentence.partition(" ")[0].lower().rstrip(",") in _UNCLEAR:
        return None
    if (match := _PRONOUN.match(sentence)) is None:
        return sentence
    return f"{name}{chr(39) + 's' if match['own'] else ''} {sentence[match.end() :]}" if name else None


def ask(sentence: str, span: NamedSpan, *, person: bool = False) -> str | None:
    """Return the question that a span of a sentence answers, if a rule applies.

    Args:
        sentence: The sentence.
        span: A name, date or number in it.
        person: Whether the subject of the passage is a person.

    >>> ask("Faust was written by Goethe in 1808.", NamedSpan(21, 27, "name"))
    'Who was Faust written by in 1808?'
    >>> ask("The crisis began in 1973.", NamedSpan(20, 24, "date"))
    'When did the crisis begin?'
    """
    before, after = _clause(sentence, span)
    if len(before.split()) + len(after.split()) > LONGEST:
        after = re.split(r"[,;:]", after, maxsplit=1)[0]
        if len(before.split()) + len(after.split()) > LONGEST:
            return None
    agent = before.endswith(" by ")
    if span.kind == "name" and before.strip().lower() in ("", "the"):
        return _join_question("Who" if person else "What", after) if re.match(r" [a-z]", after) else None
    if span.kind == "number":
        return _how_many(before, after)
    last = before.lower().split()
    if span.kind == "date":
        if last and last[-1] in _ARTICLES:
            return None  # `a 1994 film`
        word, before = "When", _without(before, _OF_DATE)
    elif last and (last[-2] if len(last) > 1 and last[-1] == "the" else last[-1]) in _OF_PLACE:
        word, before = "Where", _without(before, _OF_PLACE | {"the"})
    else:
        word = "Who" if agent else "What"
    return _front(word, f"{before.strip(' ,')} {after.lstrip(' ,')}")


def _clause(sentence: str, span: NamedSpan) -> tuple[str, str]:
    """Return the text before and after a span in its clause, or in the sentence if the clause is short."""
    cuts = [match.end() for match in _CLAUSE.finditer(sentence)]
    start = max((cut for cut in cuts if cut <= span.start), default=0)
    end = min((cut for cut in cuts if cut >= span.end), default=len(sentence))
    if start or len(sentence[start:end].split()) < 6:
        start = 0
    return sentence[start : span.start], sentence[span.end : end].rstrip(" ,;.!?")


def _without(before: str, words: Collection[str]) -> str:
    """Return a text with these words removed from its end."""
    left = before.split()
    while left and left[-1].lower() in words:
        left.pop()
    return " ".join(left)


def _how_many(before: str, after: str) -> str | None:
    """Return the question for a number before a plural noun."""
    noun, _, rest = after.strip().partition(" ")
    if not (noun.isalpha() and noun.islower() and noun.endswith("s")):
        return None
    return _front(f"How many {noun}", f"{before.strip(' ,')} {rest}")


def _front(word: str, statement: str) -> str | None:
    """Return a statement after a question word, with its verb moved before its subject."""
    statement = " ".join(statement.split())
    if match := _AUXILIARY.match(f"{statement} "):
        if word in ("What", "Who") and match["rest"].startswith(("a ", "an ", "the ")):
            return None  # `What is Faust a play by`
        return _join_question(f"{word} {match['verb']}", f"{_lower_first(match['subject'])} {match['rest']}")
    words = statement.split()
    for at, past in enumerate(words[1:8], start=1):
        if "," in words[at - 1] or words[at - 1] in _AUXILIARIES:
            return None
        if (base := base_form(past)) is not None:
            subject = _lower_first(" ".join(words[:at]))
            return _join_question(f"{word} did", f"{subject} {base} {' '.join(words[at + 1 :])}")
    return None


def _lower_first(subject: str) -> str:
    """Return a subject with its first word in lower case, if that is a common word."""
    first, _, rest = subject.partition(" ")
    return f"{first.lower()} {rest}" if first.lower() in ENGLISH else subject


def _join_question(front: str, rest: str) -> str | None:
    text = " ".join(f"{front} {rest}".translate(_NO_QUOTES).split()).rstrip(" ,;:.")
    return f"{text}?" if len(text.split()) > 3 else None
