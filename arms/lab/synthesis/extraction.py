"""Generate questions from passages by rules, without a language model.

Word frequencies and titles are read once from the corpus, or from a sample of it. A passage gives at most
one question of each style; the caller selects among them. Some are written as people type: in lower case,
without a question mark.

People do not know the words of the passage that answers them. A question in the passage's own words is easy
to match, so that a lexical arm looks better than it is. Therefore some words are replaced by common
synonyms, rare words are left out, question words are replaced by the kind of thing asked for, and long
questions are cut.

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
"""Templates of a question with a title and a phrase of the passage."""

ASKED = (
    "what is the {attribute} of {title}",
    "what was the {attribute} of {title}",
    "{title} {attribute}",
    "what is known about the {attribute} of {title}",
)
"""Templates of a question about an attribute, which the passage may put in other words or leave out."""

OF_THING = (
    *("meaning", "definition", "history", "origin", "purpose", "location", "size", "cost", "capital"),
    *("author", "creator", "director", "founder", "owner", "genre", "release date", "cast", "plot"),
    *("population", "theme", "headquarters", "opening date", "height", "cause", "effect", "example"),
    *("importance", "members", "leader"),
)
"""Attributes of a thing that people ask for."""

OF_PERSON = (
    *("occupation", "profession", "nationality", "birthplace", "date of birth", "age", "spouse", "parents"),
    *("career", "education", "religion", "cause of death", "hometown", "claim to fame", "role", "party"),
)
"""Attributes of a person that people ask for."""

ALIKE = (
    "What is the difference between {one} and {other}?",
    "Are both {one} and {other} {kind}?",
    "Which {noun} is {what}, {one} or {other}?",
)
"""Templates of a question about two passages."""


OTHERWISE = 0.7
"""Chance that a word with a synonym is replaced."""

FORGOTTEN = 0.5
"""Chance that a rare word is left out."""

FILLED = 0.7
"""Chance that a question word is replaced by the kind of thing asked for."""

SHORTEST, LONGEST = 7, 12
"""Range, in words, of the length to which a question is cut."""

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
"""Synonyms by word; phrases of two words occur only as replacements."""

KINDS = {
    "Who": ("Which person", "What is the name of the person who"),
    "When": ("In what year", "What year", "On what date"),
    "Where": ("In what place", "In which city", "In which country"),
}
"""Longer ways to ask for a person, a time or a place."""

_LAST = frozenset(
    {"in", "on", "at", "by", "of", "for", "with", "from", "to", "and", "or", "as", "that", "which"}
)


def reword(
    question: str, is_rare: Callable[[str], bool], rng: np.random.Generator, *, cut: bool = True
) -> str:
    """Return a question in other words; capitalised words, which are names, are kept.

    >>> reword("When was Faust published?", lambda _: False, np.random.default_rng(1))
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
    """Return a word, a synonym of it, or an empty text."""
    bare = word.rstrip(",;:")
    if not bare.islower() or bare in ENGLISH or not bare.isalpha():
        return word
    if bare in SYNONYMS:
        return SYNONYMS[bare] if rng.random() < OTHERWISE else word
    return "" if is_rare(bare) and rng.random() < FORGOTTEN else word


_WORD = re.compile(r"\w+")

VERSION = "2"
"""Version of the rules, part of the identity of questions."""

SAMPLED = 100_000
"""Most passages that are read for word frequencies and titles."""

RARE = 0.002
"""Share of the passages below which a word is rare."""

TYPED = 0.3
"""Share of questions that are written in lower case, without a question mark."""

NAMED_FIRST = 0.7
"""Chance that a question is taken from the statements that name the title, if there are any."""

_PERSON = frozenset({"he", "she", "his", "her", "him", "born"})


class Extraction:
    """Makes questions of each style from a passage by rules.

    Args:
        corpus: The passages.
        styles: Names from `STYLES`.
        seed: Seed of the choices among sentences, phrases and templates.
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
        """Return the questions of each passage, at most one of each style."""
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
                    made.append(_imitate_typing(question, rng) if style != "keywords" else question)
            questions.append(made)
        return questions

    def find_links(self, passage: Passage) -> Iterator[tuple[str, Passage]]:
        """Yield each name in a passage that is the title of another, and the first passage of that title."""
        passage_names = set(entities.title_names(_name(passage)))
        for name in dict.fromkeys(self._dictionary.find(passage.text)):
            title = self._names[name]
            whole = " " in name or name == entities.normalise(title)  # `XIII (singer)` is not every XIII
            if whole and name not in passage_names:
                yield name, self._corpus.passages([self._titles[title]])[0]

    def _keywords(self, passage: Passage, rng: np.random.Generator) -> Made | None:
        """Return a search by some salient words of the passage, sometimes with its title."""
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
        """Return a question about the title, with a salient phrase if other passages have the same title."""
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
        """Return a question for a name, date or number in a sentence of the passage."""
        pair = self._ask(passage, _name(passage), rng)
        return (
            None
            if pair is None
            else Made(reword(pair[0], self._is_rare, rng), (passage.id,), "cloze", (pair[1],))
        )

    def _ask(self, passage: Passage, name: str, rng: np.random.Generator) -> tuple[str, str] | None:
        """Return a question about a passage that calls its subject by `name`, and the answer."""
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
                if question is not None and entities.normalise(answer) not in entities.normalise(question):
                    return question, answer
        return None

    def _link(self, passage: Passage, rng: np.random.Generator) -> Made | None:
        """Return a question that needs this passage and another, whose title it mentions."""
        others = list(self.find_links(passage))
        for at in rng.permutation(len(others)).tolist()[:4]:
            name, other = others[at]
            ways = (self._through, self._ask_by_description)
            first = int(rng.random() < 0.2)
            pair = ways[first](passage, name, other, rng) or ways[1 - first](passage, name, other, rng)
            if pair is not None:
                text, answer = pair
                return Made(text, (passage.id, other.id), "link", (answer,) if answer else ())
        return None

    def _ask_by_description(
        self, passage: Passage, name: str, other: Passage, rng: np.random.Generator
    ) -> tuple[str, str] | None:
        """Ask for a fact of the passage about another passage, which is described instead of named."""
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
                if question is None or f" {name} " in f" {entities.normalise(question)} ":
                    continue
                if entities.normalise(answer) not in entities.normalise(question):
                    return reword(question, self._is_rare, rng, cut=False), answer
        return None

    def _through(
        self, passage: Passage, name: str, other: Passage, rng: np.random.Generator
    ) -> tuple[str, str] | None:
        """Ask for a fact of the other passage, called by its kind and this passage's title."""
        what, title = english.definition(other.text), _name(passage)
        if what is None or not title:
            return None
        path = f"the {what.noun} of {title}"
        if rng.random() < 0.7:
            return _ask_about(other, path, rng), ""
        facts = Passage(other.id, other.title, _without_subject(other))
        pair = self._ask(facts, path, rng)
        if pair is not None and title in pair[0] and f" {name} " not in f" {entities.normalise(pair[0])} ":
            return pair
        return None

    def _compare(self, passage: Passage, rng: np.random.Generator) -> Made | None:
        """Return a question that compares this passage with another about the same kind of thing."""
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
        """Group a sample of the passages by the kind of thing that they are about."""
        firsts = list(self._titles.values())
        drawn = self._rng("alike").permutation(len(firsts))[:5000].tolist()
        for passage in self._corpus.passages(firsts[at] for at in drawn):
            what = english.definition(passage.text)
            if what is not None:
                self._alike[what.noun].append((passage, what))

    def _salience(self, text: str) -> dict[str, float]:
        """Return the weight of each word of a text: its count, at most 3, times its rarity in the corpus."""
        counted = Counter(word for word in words(text, "english") if len(word) > 2 and not word.isdecimal())
        return {
            word: min(n, 3) * float(np.log((1 + self._n) / (0.5 + self._counts.get(word, 0))))
            for word, n in counted.items()
        }

    def _phrase(self, passage: Passage, rng: np.random.Generator) -> str | None:
        """Return a salient word of a passage that its title lacks, or two consecutive ones."""
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
        """Return whether the share of passages with a word is below `RARE`."""
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
    """Return the title of a passage's page: the part before ` - `, without the section."""
    return passage.title.partition(" - ")[0].strip(" -")


def _ask_about(passage: Passage, name: str, rng: np.random.Generator) -> str:
    """Return a question for an attribute of a passage's subject, called by `name`."""
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
    """Return the start and end of a normalised name in a sentence, if it occurs.

    >>> _find_name("if castle", "He left the If-Castle.")
    (12, 21)
    """
    parts = name.split()
    matches = list(_WORD.finditer(sentence))
    folded = [entities.normalise(match[0]) for match in matches]
    for at in range(len(folded) - len(parts) + 1):
        if folded[at : at + len(parts)] == parts:
            return matches[at].start(), matches[at + len(parts) - 1].end()
    return None


def _without_subject(passage: Passage) -> str:
    """Return the sentences about the subject of a passage, with a pronoun in place of its title."""
    questions = []
    for sentence in english.sentences(passage.text):
        for name in entities.title_names(passage.title):
            place = _find_name(name, sentence)
            if place is not None and entities.normalise(sentence[: place[0]]) in ("", "the", "a", "an"):
                questions.append(f"It{sentence[place[1] :]}".replace("It's ", "Its ", 1))
                break
        else:
            if sentence.startswith(("He ", "She ", "It ", "They ", "His ", "Her ", "Its ", "Their ")):
                questions.append(sentence)
    return " ".join(questions)


def _imitate_typing(made: Made, rng: np.random.Generator) -> Made:
    """Return a question as it is or, with the chance `TYPED`, in lower case without question mark."""
    if rng.random() >= TYPED:
        return made
    return replace(made, question=made.question.lower().rstrip("?"))
