"""Extraction of named entities from passages and questions.

    Titles       titles of the corpus that a text mentions
    Recogniser   entities that a spaCy model marks, for corpora with uninformative titles
    Lister       entities that a language model lists; the most expensive

An entity is identified by its normalised name: words without accents, punctuation and case. In running
text, capitals distinguish a name from common words. The title of a passage is one of its entities.
"""

import hashlib
import itertools
import threading
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import orjson
import regex
from numpy.typing import NDArray

from armwise.arms import tokenizer
from armwise.arms.base import ArmError, Passage
from armwise.arms.corpus import Corpus
from armwise.arms.extras import install_command
from armwise.arms.indexes.vectors import embedded_text
from armwise.arms.llm import (
    MESSAGE_TOKENS,
    Bound,
    GeneratorError,
    Message,
    Prompt,
    Write,
    base,
    most_tokens,
    quotation,
)
from armwise.arms.models import ModelNotFoundError, digest_file, locate
from armwise.arms.tokenizer import ENGLISH, PAIRED

LONGEST = 12
"""Most words of a name."""

Known = Callable[[Sequence[str]], NDArray[np.bool_]]
"""Normalised names -> whether each is an entity of the graph, shape (n_names,)."""

_ACCENT = regex.compile(r"(?<=[\p{Latin}\p{Greek}\p{Cyrillic}\p{Arabic}\p{Hebrew}])\p{M}+")

_CHARACTER = regex.compile(PAIRED)


def written_words(text: str) -> list[str]:
    """Return the words of a text without accents.

    >>> written_words("The Château d'If")
    ['The', 'Chateau', 'd', 'If']
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKC", _ACCENT.sub("", unicodedata.normalize("NFKD", text)))
    return tokenizer.written_words(text)


def normalised(name: str) -> str:
    """Return the words of a name without accents, punctuation and case.

    >>> normalised("Schindler's List"), normalised("BEYONCÉ")
    ('schindler s list', 'beyonce')
    """
    return " ".join(word.casefold() for word in written_words(name))


def title_names(title: str) -> list[str]:
    """Return the names of a title, with and without a closing parenthesis and the article.

    >>> title_names("The Tempest (1979 film)")
    ['the tempest 1979 film', 'the tempest', 'tempest 1979 film', 'tempest']
    """
    before, _, inside = title.rstrip().rpartition("(")
    closing = inside.find(")") == len(inside) - 1
    names = distinct([normalised(title), normalised(before) if inside and closing else ""])
    return distinct([*names, *map(bare, names)])


def bare(name: str) -> str:
    """Return a normalised name without its leading article.

    >>> bare("the beatles"), bare("a")
    ('beatles', 'a')
    """
    first, _, rest = name.partition(" ")
    return rest if rest and first in ("the", "a", "an") else name


def distinct(names: Iterable[str]) -> list[str]:
    """Return the distinct non-empty names, in order."""
    return [name for name in dict.fromkeys(names) if name]


class Dictionary:
    """Finds names in running text, from left to right, the longest first and without overlaps.

    A name in lower case is often a common word. So the first content word of a name must have a capital
    or be in a script without case; a name of function words alone must have at least two, each with a
    capital. A lone number, or a lone character of a script without blanks, is never a name.
    """

    def __init__(self, names: Iterable[str]) -> None:
        """Index normalised names of up to `LONGEST` words."""
        self._names = {name for name in names if name.count(" ") < LONGEST}
        lengths: defaultdict[str, set[int]] = defaultdict(set)
        for name in self._names:
            lengths[name.partition(" ")[0]].add(name.count(" ") + 1)
        self._lengths = {first: sorted(counts, reverse=True) for first, counts in lengths.items()}

    def find(self, text: str, *, careless: bool = False) -> list[str]:
        """Return the names in a text, in order.

        Args:
            text: The text.
            careless: Ignore capitals: a name counts if it has two content words.

        >>> Dictionary(["opera", "new york", "york"]).find("The opera of New York")
        ['new york']
        """
        written = written_words(text)
        folded = [word.casefold() for word in written]
        counts = _has_two_content_words if careless else _stands_out
        names, free = [], 0
        for start, first in enumerate(folded):
            if start < free:
                continue
            for length in self._lengths.get(first, ()):
                name = " ".join(folded[start : start + length])
                if name in self._names and counts(written[start : start + length]):
                    names.append(name)
                    free = start + length
                    break
        return names


def known_names(question: str, known: Known) -> list[str]:
    """Return the known names in a question, with and without their articles.

    In a question in lower case, only names of at least two content words count: single words are mostly
    common words.

    >>> known_names("Who wrote The Tempest?", lambda names: np.array([name == "tempest" for name in names]))
    ['tempest']
    """
    spans = distinct(_spans(normalised(question).split()))
    if not spans:
        return []
    names = Dictionary(itertools.compress(spans, known(spans))).find(question, careless=question.islower())
    return distinct([*names, *map(bare, names)])


def _spans(folded: Sequence[str]) -> Iterator[str]:
    """Yield every run of words that may be a title."""
    for start in range(len(folded)):
        for end in range(start + 1, min(start + LONGEST, len(folded)) + 1):
            yield " ".join(folded[start:end])


def _stands_out(written: Sequence[str]) -> bool:
    """Return whether a run of words is written like a name, see `Dictionary`."""
    content = _content(written)
    if not content:
        return len(written) > 1 and not any(word.islower() for word in written)
    common = len(written) == 1 and (content[0].isdecimal() or _CHARACTER.match(content[0]) is not None)
    return not content[0].islower() and not common


def _has_two_content_words(written: Sequence[str]) -> bool:
    return len(_content(written)) > 1


def _content(written: Sequence[str]) -> list[str]:
    """Return the content words."""
    return [word for word in written if word.lower() not in ENGLISH]


class Extractor(Protocol):
    """Finds the names of entities; thread-safe.

    Attributes:
        identity: Identity of the extraction.
        step: Passages between two checkpoints.
    """

    identity: Mapping[str, str]
    step: int

    def of_passages(self, passages: Sequence[Passage]) -> list[list[str] | None]:
        """Return the distinct names in each passage, title first; None: the extraction was unreadable.

        Raises:
            GeneratorError: The language model failed.
        """
        ...

    def of_question(self, text: str, known: Known) -> tuple[list[str], int]:
        """Return the names in a question, and the tokens spent. Raises ArmError."""
        ...


class Titles:
    """The entities are the titles of the corpus."""

    identity: Mapping[str, str] = {"entities": "titles"}
    step = 2_000

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus

    def of_passages(self, passages: Sequence[Passage]) -> list[list[str] | None]:
        """Return the names of each passage's title, then of other titles in its text."""
        find = self._dictionary.find
        return [distinct([*title_names(p.title), *find(p.text)]) for p in passages]

    def of_question(self, text: str, known: Known) -> tuple[list[str], int]:
        """Return the titles in a question."""
        return known_names(text, known), 0

    @cached_property
    def _dictionary(self) -> Dictionary:
        return Dictionary(itertools.chain.from_iterable(title_names(p.title) for p in self._corpus))


class Recogniser:
    """The entities are the names that a spaCy model marks; numbers, amounts and dates are left out.

    In a question, they are the names that were marked in passages: a small model would miss
    many of them.

    Raises:
        ModelNotFoundError: The model is neither a folder nor in an installed package.
    """

    step = 256
    unnamed = frozenset({"CARDINAL", "ORDINAL", "QUANTITY", "PERCENT", "MONEY", "DATE", "TIME"})
    """Labels of numbers, amounts and dates."""

    def __init__(self, model: str) -> None:
        place = locate(model)
        if not isinstance(place, Path):
            raise ModelNotFoundError(
                f"ner_model {model!r}: a folder or package:NAME/PATH is needed, "
                "such as package:en_core_web_sm/en_core_web_sm-3.8.0"
            )
        self.identity: Mapping[str, str] = {"entities": "ner", "model": digest_file(place)}
        self._place = place
        self._lock = threading.Lock()

    def of_passages(self, passages: Sequence[Passage]) -> list[list[str] | None]:
        """Return the names of each passage's title, then those marked in title and text.

        Raises:
            ModelNotFoundError: spaCy is not installed, or the model lacks a component `ner`.
        """
        with self._lock:  # a pipeline is not thread-safe
            documents = list(self._pipeline.pipe(map(embedded_text, passages)))
        marked = [
            [normalised(entity.text) for entity in document.ents if entity.label_ not in self.unnamed]
            for document in documents
        ]
        return [_named(passage, names) for passage, names in zip(passages, marked, strict=True)]

    def of_question(self, text: str, known: Known) -> tuple[list[str], int]:
        """Return the names in a question that were marked in passages."""
        return known_names(text, known), 0

    @cached_property
    def _pipeline(self) -> Any:
        try:
            import spacy  # here: a heavy extra, not needed once the graph is built
        except ImportError as error:
            raise ModelNotFoundError(f"entities 'ner' need spaCy: {install_command(['spacy'])}") from error
        pipeline = spacy.load(self._place)
        if "ner" not in pipeline.pipe_names:
            has = ", ".join(pipeline.pipe_names) or "nothing"
            raise ModelNotFoundError(f"ner_model {self._place} has no `ner` component; it has: {has}")
        # only the component that marks names, and its inputs
        needed = [
            name
            for name, part in pipeline.pipeline
            if name == "ner" or "ner" in getattr(part, "listening_components", ())
        ]
        pipeline.select_pipes(enable=needed)
        return pipeline


class Lister:
    """The entities are the names that a language model lists and the text contains.

    After an unreadable list the model is prompted once more. The identity excludes the model, so that names
    are kept when it changes.
    """

    step = 32
    at_once = 8
    """Concurrent prompts."""
    max_tokens = 512
    """Most tokens of a list; a truncated list would be unreadable."""

    system = (
        "You list the names in a text: of people, places, organisations, works, events and all else that has "
        "a name of its own. Answer with a JSON list of strings and nothing besides; write each name as the "
        "text writes it."
    )
    retry = "That is no JSON list of strings. Write the list alone; [] if the text has no name."
    bound = Bound.of_call(system, max_tokens) * 2 + Bound(
        read=max_tokens + most_tokens(retry) + 2 * MESSAGE_TOKENS
    )
    """Upper bound of the tokens that the names of a question cost."""

    def __init__(self, write: Write) -> None:
        prompts = hashlib.blake2b(f"{self.system}\0{self.retry}".encode(), digest_size=8)
        self.identity: Mapping[str, str] = {"entities": "llm", "prompts": prompts.hexdigest()}
        self._write = write

    def of_passages(self, passages: Sequence[Passage]) -> list[list[str] | None]:
        """Return the names of each passage's title, then those that the model lists."""
        with ThreadPoolExecutor(self.at_once) as pool:
            return list(pool.map(self._of_passage, passages))

    def of_question(self, text: str, known: Known) -> tuple[list[str], int]:
        """Return the names that the model lists, then known names, and the tokens of all attempts."""
        try:
            names, tokens = self._listed(text)
        except GeneratorError as error:
            raise ArmError(f"the names in the question could not be listed: {error}") from error
        return distinct([*map(bare, names or ()), *known_names(text, known)]), tokens

    def _of_passage(self, passage: Passage) -> list[str] | None:
        try:
            names, _ = self._listed(embedded_text(passage))
        except base.PromptTooLongError:  # other passages go on
            names = None
        return None if names is None else _named(passage, names)

    def _listed(self, text: str) -> tuple[list[str] | None, int]:
        """Return the names in a text, and the tokens. Raises GeneratorError.

        None instead of names: both lists were unreadable.
        """
        messages: tuple[Message, ...] = (
            {"role": "system", "content": self.system},
            {"role": "user", "content": quotation.quoted(text)},
        )
        tokens = 0
        for _ in range(2):
            answer, last = self._write(Prompt(messages, self.max_tokens))
            tokens += last.prompt_tokens + last.completion_tokens
            try:
                names = map(normalised, listed_names(answer))
            except ValueError:
                messages += (
                    {"role": "assistant", "content": answer},
                    {"role": "user", "content": self.retry},
                )
                continue
            within = f" {normalised(text)} "
            return [name for name in names if f" {name} " in within], tokens
        return None, tokens


def listed_names(answer: str) -> list[str]:
    """Return the strings of the JSON list in an answer. Raises ValueError if there is none.

    >>> listed_names('Here they are: ["Vienna", "Mozart"]')
    ['Vienna', 'Mozart']
    """
    names = orjson.loads(answer[answer.find("[") : answer.rfind("]") + 1])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"a list of strings is needed, got {answer!r}")
    return names


def _named(passage: Passage, names: Iterable[str]) -> list[str]:
    """Return the names of a passage's title, then the others."""
    return distinct([*title_names(passage.title), *map(bare, names)])
