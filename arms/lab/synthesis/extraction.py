"""Questions made from passages by rules, without a language model.

The corpus is read once for how rare its words are and which titles it has, at most a sample of it.
A passage gives at most one question of each style; which of them are kept is up to the caller. Some are
written as people type: in small letters, without a question mark.

People do not know the words of the passage that answers them. Word for word, a question made from a
passage is found by its words alone, and an arm that compares words looks better than it is. So some
words are replaced by common synonyms, rare ones are left out, what is asked for is called by its kind,
and a long question is cut.

Source: Furnas et al. 1987, The vocabulary problem in human-system communication, Communications of the
ACM 30(11): two people name the same thing by the same word in fewer than one case in five.
"""

import hashlib
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from armwise.arms.base import Passage, Progress
from armwise.arms.corpus import Corpus
from armwise.arms.lab.synthesis import wording as english
from armwise.arms.lab.synthesis.job import Made
from armwise.arms.lab.synthesis.wording import SubjectDefinition, about, ask
from armwise.arms.more import entities
from armwise.arms.tokenizer import ENGLISH, words

NAMED = (
    "What is the {phrase} of {title}?",
    "How is {phrase} related to {title}?",
    "What about {phrase} in {title}?",
    "{title} {phrase}",
    "What does {title} have to do with {phrase}?",
)
"""Forms of a question of a title and a phrase."""

ASKED = (
    "what is the {attribute} of {title}",
    "what was the {attribute} of {title}",
    "{title} {attribute}",
    "what is known about the {attribute} of {title}",
)
"""Forms of a question of what a passage is about, which it may name in other words or not at all."""

OF_THING = (
    *("meaning", "definition", "history", "origin", "purpose", "location", "size", "cost", "capital"),
    *("author", "creator", "director", "founder", "owner", "genre", "release date", "cast", "plot"),
    *("population", "theme", "headquarters", "opening date", "height", "cause", "effect", "example"),
    *("importance", "members", "leader"),
)
"""What people want to know of a thing."""

OF_PERSON = (
    *("occupation", "profession", "nationality", "birthplace", "date of birth", "age", "spouse", "parents"),
    *("career", "education", "religion", "cause of death", "hometown", "claim to fame", "role", "party"),
)
"""What people want to know of a person."""

ALIKE = (
    "What is the difference between {one} and {other}?",
    "Are both {one} and {other} {kind}?",
    "Which {noun} is {what}, {one} or {other}?",
)
"""Forms of a question of two passages."""


OTHERWISE = 0.7
"""Chance that a word with a synonym is replaced."""

FORGOTTEN = 0.5
"""Chance that a rare word is left out."""

FILLED = 0.7
"""Chance that a question word is replaced by the kind of what is asked for."""

SHORTEST, LONGEST = 7, 12
"""A question is cut to a length between these, in words."""

SYNONYMS = {
    word: other
    for left, right in (
        *(
            ("begin", "start"),
            ("film", "movie"),
            ("large", "big"),
            ("purchase", "buy"),
            ("build", "construct"),
        ),
        *(("show", "display"), ("make", "create"), ("get", "receive"), ("end", "finish"), ("help", "assist")),
        *(("children", "kids"), ("song", "track"), ("location", "place"), ("job", "occupation")),
        *(
            ("author", "writer"),
            ("company", "firm"),
            ("country", "nation"),
            ("town", "city"),
            ("area", "region"),
        ),
        *(
            ("located", "situated"),
            ("founded", "established"),
            ("written", "authored"),
            ("released", "published"),
        ),
        *(
            ("starring", "featuring"),
            ("television", "tv"),
            ("show", "series"),
            ("road", "street"),
            ("war", "conflict"),
        ),
        *(
            ("die", "pass away"),
            ("allow", "let"),
            ("use", "employ"),
            ("need", "require"),
            ("delete", "remove"),
        ),
        *(("function", "method"), ("option", "setting"), ("error", "failure"), ("file", "document")),
        *(("return", "give back"), ("change", "modify"), ("select", "choose"), ("directory", "folder")),
        *(
            ("argument", "parameter"),
            ("fast", "quick"),
            ("small", "little"),
            ("old", "ancient"),
            ("rich", "wealthy"),
        ),
        *(
            ("team", "club"),
            ("game", "match"),
            ("leader", "head"),
            ("member", "part"),
            ("population", "inhabitants"),
        ),
        *(("award", "prize"), ("main", "primary"), ("important", "significant")),
        *(("century", "hundred years"), ("college", "university"), ("law", "act"), ("money", "cash")),
        *(
            ("born", "birth"),
            ("american", "us"),
            ("british", "uk"),
            ("originally", "at first"),
            ("called", "named"),
        ),
    )
    for word, other in ((left, right), (right, left))
}
"""Common words for each other; a phrase is only put in, never replaced."""

KINDS = {
    "Who": ("Which person", "What is the name of the person who"),
    "When": ("In what year", "What year", "On what date"),
    "Where": ("In what place", "In which city", "In which country"),
}
"""Longer ways to ask for a person, a time or a place."""

_LAST = frozenset(
    {"in", "on", "at", "by", "of", "for", "with", "from", "to", "and", "or", "as", "that", "which"}
)


def reworded(
    question: str, is_rare: Callable[[str], bool], rng: np.random.Generator, *, cut: bool = True
) -> str:
    """Return a question in other words; names, which have capital letters, stay as they are.

    >>> reworded("When was Faust published?", lambda _: False, np.random.default_rng(1))
    'On what date was Faust released?'
    """
    first, *rest = question.rstrip("?").split()
    if first in KINDS and rng.random() < FILLED:
        ways = KINDS[first]
        first = ways[int(rng.integers(len(ways)))]
    kept = [first, *filter(None, (_other(word, is_rare, rng) for word in rest))]
    limit = int(rng.integers(SHORTEST, LONGEST + 1))
    if cut and len(kept) > limit:
        end = next(
            (at for at in range(limit, 4, -1) if kept[at] in _LAST or kept[at - 1].endswith(",")), limit
        )
        kept = kept[:end]
    while kept[-1].lower() in ENGLISH and len(kept) > 4:
        kept.pop()
    return f"{' '.join(kept).rstrip(' ,;')}?"


def _other(word: str, is_rare: Callable[[str], bool], rng: np.random.Generator) -> str:
    """Return a word, a synonym of it, or nothing."""
    bare = word.rstrip(",;:")
    if not bare.islower() or bare in ENGLISH or not bare.isalpha():
        return word
    if bare in SYNONYMS:
        return SYNONYMS[bare] if rng.random() < OTHERWISE else word
    return "" if is_rare(bare) and rng.random() < FORGOTTEN else word


_WORD = re.compile(r"\w+")

VERSION = "1"
"""Part of the identity of questions; raised when the rules change."""

SAMPLED = 100_000
"""Most passages that are read for words and titles."""

RARE = 0.002
"""Share of the passages below which a word is rare."""

TYPED = 0.3
"""Share of questions that are written as people type."""

NAMED_FIRST = 0.7
"""Share of the questions of a statement for which one that names the title is looked for first."""

_PERSON = frozenset({"he", "she", "his", "her", "him", "born"})


class Extraction:
    """Makes questions of each style from a passage by rules.

    Args:
        corpus: The passages.
        styles: Styles, of `STYLES`.
        seed: Seed that chooses among sentences, phrases and forms.
        progress: Progress callback of reading the corpus.
    """

    step = 128

    def __init__(self, corpus: Corpus, styles: Sequence[str], seed: int, progress: Progress) -> None:
        self.styles = tuple(styles)
        self.identity: Mapping[str, str] = {"made by": f"extraction {VERSION}"}
        self._corpus, self._seed = corpus, seed
        self._counts: Counter[str] = Counter()
        titles: dict[str, int] = {}
        names: dict[str, str] = {}
        positions = np.linspace(0, len(corpus) - 1, min(len(corpus), SAMPLED)).round().astype(int)
        self._n = len(positions)
        for done, (position, passage) in enumerate(_read(corpus, positions), start=1):
            self._counts.update(set(words(f"{passage.title} {passage.text}", "english")))
            if name := _name(passage):
                titles.setdefault(name, position)
                for known_as in entities.title_names(name):
                    names.setdefault(known_as, name)
            if done % 1000 == 0 or done == self._n:
                progress("reading the corpus", done, self._n)
        self._titles, self._names = titles, names
        self._dictionary = entities.Dictionary(names)
        self._alike: defaultdict[str, list[tuple[Passage, SubjectDefinition]]] = defaultdict(list)
        if "compare" in self.styles:
            self._find_alike()

    def make(self, positions: Sequence[int]) -> list[list[Made]]:
        """Return the questions that each passage gives, at most one of each style."""
        makers = {
            "keywords": self._keywords,
            "title": self._title,
            "cloze": self._cloze,
            "link": self._link,
            "compare": self._compare,
        }
        questions = []
        for passage in self._corpus.passages(positions):
            made = []
            for style in self.styles:
                rng = self._rng(f"{style}\0{passage.id}")
                if (question := makers[style](passage, rng)) is not None:
                    made.append(_typed(question, rng) if style != "keywords" else question)
            questions.append(made)
        return questions

    def linked(self, passage: Passage) -> Iterator[tuple[str, Passage]]:
        """Yield the names in a passage that are titles of others, and the first passage of each."""
        passage_names = set(entities.title_names(_name(passage)))
        for name in dict.fromkeys(self._dictionary.find(passage.text)):
            title = self._names[name]
            whole = " " in name or name == entities.normalised(title)  # `XIII (singer)` is not every XIII
            if whole and name not in passage_names:
                yield name, self._corpus.passages([self._titles[title]])[0]

    def _keywords(self, passage: Passage, rng: np.random.Generator) -> Made | None:
        """Return some of the rarest words of the passage, and sometimes of its title."""
        weights = self._salience(passage.text)
        if len(weights) < 3:
            return None
        title = [_name(passage)] if passage.title and rng.random() < 0.6 else []
        best = sorted(weights, key=lambda word: (-weights[word], word))[: 20 if title else 10]
        picked = rng.choice(len(best), min(len(best), int(rng.integers(1, 4)) + (not title)), replace=False)
        chosen = {best[at] for at in picked.tolist()}
        ordered = [word for word in dict.fromkeys(words(passage.text)) if word in chosen]
        return Made(" ".join([*title, *ordered]), (passage.id,), "keywords")

    def _title(self, passage: Passage, rng: np.random.Generator) -> Made | None:
        """Return a question form around the title, with a salient phrase where others have the title."""
        title = _name(passage)
        if not title:
            return None
        first = self._titles.get(title)
        if first is not None and self._corpus.passages([first])[0].id == passage.id and rng.random() < 0.8:
            return Made(_ask_about(passage, title, rng), (passage.id,), "title")
        phrase = self._phrase(passage, rng)
        if phrase is None:
            return None
        text = NAMED[int(rng.integers(len(NAMED)))].format(title=title, phrase=phrase)
        return Made(text, (passage.id,), "title")

    def _cloze(self, passage: Passage, rng: np.random.Generator) -> Made | None:
        """Return a sentence of the passage as a question for a name, date or number in it."""
        pair = self._asked(passage, _name(passage), rng)
        return (
            None
            if pair is None
            else Made(reworded(pair[0], self._is_rare, rng), (passage.id,), "cloze", (pair[1],))
        )

    def _asked(self, passage: Passage, name: str, rng: np.random.Generator) -> tuple[str, str] | None:
        """Return a question of a passage with a name for its subject, and the answer."""
        person = _is_person(passage.text)
        stated = english.sentences(passage.text)
        named = [about(statement, name) for statement in stated]
        order = rng.permutation(len(stated)).tolist()
        if name and rng.random() < NAMED_FIRST:
            order.sort(key=lambda at: name not in (named[at] or ""))
        for at in order:
            sentence = named[at]
            if sentence is None:
                continue
            spans = english.spans(sentence)
            for place in rng.permutation(len(spans)).tolist():
                answer = sentence[spans[place].start : spans[place].end]
                question = ask(sentence, spans[place], person=person)
                if question is not None and entities.normalised(answer) not in entities.normalised(question):
                    return question, answer
        return None

    def _link(self, passage: Passage, rng: np.random.Generator) -> Made | None:
        """Return a question that needs this passage and one whose title it mentions."""
        others = list(self.linked(passage))
        for at in rng.permutation(len(others)).tolist()[:4]:
            name, other = others[at]
            ways = (self._through, self._described)
            first = int(rng.random() < 0.2)
            pair = ways[first](passage, name, other, rng) or ways[1 - first](passage, name, other, rng)
            if pair is not None:
                text, answer = pair
                return Made(text, (passage.id, other.id), "link", (answer,) if answer else ())
        return None

    def _described(
        self, passage: Passage, name: str, other: Passage, rng: np.random.Generator
    ) -> tuple[str, str] | None:
        """Ask for something that the passage states of another, which is described in place of its name."""
        what = english.definition(other.text)
        if what is None:
            return None
        words_ = what.what.partition(",")[0].split()
        description = f"the {' '.join(words_[1:10])}"
        for stated in english.sentences(passage.text):
            place = _find_name(name, stated)
            sentence = about(stated, _name(passage))
            if place is None or sentence is None:
                continue
            offset = len(sentence) - len(stated)
            hidden = sentence[: place[0] + offset].removesuffix("the ").removesuffix("The ")
            sentence = f"{hidden}{description}{sentence[place[1] + offset :]}"
            within = range(len(hidden), len(hidden) + len(description))
            for at in rng.permutation(len(spans := english.spans(sentence))).tolist():
                span = spans[at]
                if span.start in within or span.end - 1 in within:
                    continue
                question = ask(sentence, span, person=_is_person(passage.text))
                answer = sentence[span.start : span.end]
                if question is None or f" {name} " in f" {entities.normalised(question)} ":
                    continue
                if entities.normalised(answer) not in entities.normalised(question):
                    return reworded(question, self._is_rare, rng, cut=False), answer
        return None

    def _through(
        self, passage: Passage, name: str, other: Passage, rng: np.random.Generator
    ) -> tuple[str, str] | None:
        """Ask for something that the other passage states, with the passage's title in place of its own."""
        what, title = english.definition(other.text), _name(passage)
        if what is None or not title:
            return None
        path = f"the {what.noun} of {title}"
        if rng.random() < 0.7:
            return _ask_about(other, path, rng), ""
        facts = Passage(other.id, other.title, _without_subject(other))
        pair = self._asked(facts, path, rng)
        if pair is not None and title in pair[0] and f" {name} " not in f" {entities.normalised(pair[0])} ":
            return pair
        return None

    def _compare(self, passage: Passage, rng: np.random.Generator) -> Made | None:
        """Return a question of this passage and another about the same kind of thing."""
        what = english.definition(passage.text)
        if what is None or not passage.title:
            return None
        others = [(o, d) for o, d in self._alike.get(what.noun, ()) if _name(o) != _name(passage)]
        if not others:
            return None
        other, their = others[int(rng.integers(len(others)))]
        gold = (passage.id, other.id)
        left, right = (passage, other) if rng.random() < 0.5 else (other, passage)
        years = [_year(text) for text in (left.text, right.text)]
        if years[0] and years[1] and years[0] != years[1] and rng.random() < 0.6:
            person = _is_person(left.text) and _is_person(right.text)
            first = rng.random() < 0.5
            if person:
                order = f"Who was born {'first' if first else 'later'}"
            else:
                order = f"Which {what.noun} came {'first' if first else 'later'}"
            answer = left if (years[0] < years[1]) == first else right
            return Made(f"{order}, {_name(left)} or {_name(right)}?", gold, "compare", (_name(answer),))
        form = ALIKE[int(rng.integers(len(ALIKE)))]
        described = " ".join(what.what.partition(",")[0].split()[:10])
        kind = f"{what.what.partition(' ')[0]} {what.kind}"
        text = form.format(one=_name(left), other=_name(right), kind=kind, noun=what.noun, what=described)
        answers = () if "difference" in form else ("yes",) if form.startswith("Are") else (_name(passage),)
        if form.startswith("Are") and their.kind != what.kind:
            answers = ()
        return Made(text, gold, "compare", answers)

    def _find_alike(self) -> None:
        """Sort a sample of the passages by the kind of thing that they are about."""
        firsts = list(self._titles.values())
        drawn = self._rng("alike").permutation(len(firsts))[:5000].tolist()
        for passage in self._corpus.passages(firsts[at] for at in drawn):
            what = english.definition(passage.text)
            if what is not None:
                self._alike[what.noun].append((passage, what))

    def _salience(self, text: str) -> dict[str, float]:
        """Return the weight of each word of a text: how often it is there, and how rare in the corpus."""
        counted = Counter(word for word in words(text, "english") if len(word) > 2 and not word.isdecimal())
        return {
            word: min(n, 3) * float(np.log((1 + self._n) / (0.5 + self._counts.get(word, 0))))
            for word, n in counted.items()
        }

    def _phrase(self, passage: Passage, rng: np.random.Generator) -> str | None:
        """Return a salient word of a passage that its title lacks, or two that follow each other."""
        title_words = set(words(passage.title))
        weights = {word: w for word, w in self._salience(passage.text).items() if word not in title_words}
        best = sorted(weights, key=lambda word: (-weights[word], word))[:6]
        if not best:
            return None
        word = best[int(rng.integers(len(best)))]
        text = words(passage.text)
        after = next((b for a, b in itertools.pairwise(text) if a == word and b in weights), None)
        return f"{word} {after}" if after and rng.random() < 0.6 else word

    def _is_rare(self, word: str) -> bool:
        """Return whether so few passages have a word that few people would think of it."""
        return self._counts.get(word, 0) < RARE * self._n

    def _rng(self, name: str) -> np.random.Generator:
        digest = hashlib.blake2b(f"{self._seed}\0{name}".encode(), digest_size=8).digest()
        return np.random.default_rng(int.from_bytes(digest))


def _read(corpus: Corpus, positions: NDArray[np.intp]) -> Iterator[tuple[int, Passage]]:
    """Yield the passages at these positions."""
    for start in range(0, len(positions), 1000):
        part = positions[start : start + 1000].tolist()
        yield from zip(part, corpus.passages(part), strict=True)


def _name(passage: Passage) -> str:
    """Return the title of a passage, as a question names it: that of the page, without that of a section."""
    return passage.title.partition(" - ")[0].strip(" -")


def _ask_about(passage: Passage, name: str, rng: np.random.Generator) -> str:
    """Return a question of what a passage is about, by a name for it."""
    attributes = OF_PERSON if _is_person(passage.text) else OF_THING
    attribute = attributes[int(rng.integers(len(attributes)))]
    form = "what is {title}" if rng.random() < 0.1 else ASKED[int(rng.integers(len(ASKED)))]
    text = form.format(title=name, attribute=attribute)
    return f"{text[0].upper()}{text[1:]}?"


def _is_person(text: str) -> bool:
    """Return whether a passage seems to be about a person."""
    return not _PERSON.isdisjoint(words(text[:400]))


def _year(text: str) -> str | None:
    """Return the first year in a passage."""
    year = re.search(r"\b(?:1\d|20)\d\d\b", text[:300])
    return year and year[0]


def _find_name(name: str, sentence: str) -> tuple[int, int] | None:
    """Return where a normalised name begins and ends in a sentence; None where it is not.

    >>> _find_name("if castle", "He left the If-Castle.")
    (12, 21)
    """
    parts = name.split()
    matches = list(_WORD.finditer(sentence))
    folded = [entities.normalised(match[0]) for match in matches]
    for at in range(len(folded) - len(parts) + 1):
        if folded[at : at + len(parts)] == parts:
            return matches[at].start(), matches[at + len(parts) - 1].end()
    return None


def _without_subject(passage: Passage) -> str:
    """Return the sentences of a passage that begin with its title, as `It`, or with a pronoun."""
    questions = []
    for sentence in english.sentences(passage.text):
        for name in entities.title_names(passage.title):
            place = _find_name(name, sentence)
            if place is not None and entities.normalised(sentence[: place[0]]) in ("", "the", "a", "an"):
                questions.append(f"It{sentence[place[1] :]}".replace("It's ", "Its ", 1))
                break
        else:
            if sentence.startswith(("He ", "She ", "It ", "They ", "His ", "Her ", "Its ", "Their ")):
                questions.append(sentence)
    return " ".join(questions)


def _typed(made: Made, rng: np.random.Generator) -> Made:
    """Return some questions in small letters and without their last mark, as people type."""
    if rng.random() >= TYPED:
        return made
    return replace(made, question=made.question.lower().rstrip("?"))
