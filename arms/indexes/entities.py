"""What a text speaks of: who finds the entities.

    Titles       the titles of the corpus, where a text has them; needs nothing else
    Recogniser   what a spaCy model marks; for corpora whose titles say little
    Lister       what a language model lists; the dearest

All three know an entity by its name (`arms.indexes.entity_names`), and count the title of a passage
among its entities.
"""

import hashlib
import itertools
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import orjson

from arms.base import ArmError, Passage
from arms.corpus import Corpus
from arms.indexes.entity_names import Dictionary, Known, bare, distinct, known_names, normalised, title_names
from arms.indexes.vectors import embedded_text
from arms.llm import GeneratorError, Message, Prompt, Write, base
from arms.models import ModelNotFoundError, digest_of, locate


class Extractor(Protocol):
    """Finds the names of entities; safe to use from many threads.

    Attributes:
        identity: What the names in a passage follow from, beside the passage.
        step: Passages between two steps that a killed run keeps.
    """

    identity: Mapping[str, str]
    step: int

    def of_passages(self, passages: Sequence[Passage]) -> list[list[str] | None]:
        """Return the names in each passage, each once, title first; None where it could not be read.

        Raises:
            GeneratorError: The language model could not answer.
        """
        ...

    def of_question(self, text: str, known: Known) -> tuple[list[str], int]:
        """Return the names in a question and the tokens that it took. Raises ArmError."""
        ...


class Titles:
    """Entities are the titles of a corpus: a passage speaks of those that its text mentions."""

    identity: Mapping[str, str] = {"entities": "titles"}
    step = 2_000

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus

    def of_passages(self, passages: Sequence[Passage]) -> list[list[str] | None]:
        """Return the names of the passage's own title, then of other titles in its text."""
        find = self._dictionary.find
        return [distinct([*title_names(p.title), *find(p.text)]) for p in passages]

    def of_question(self, text: str, known: Known) -> tuple[list[str], int]:
        """Return the titles in a question, at no token."""
        return known_names(text, known), 0

    @cached_property
    def _dictionary(self) -> Dictionary:
        return Dictionary(itertools.chain.from_iterable(title_names(p.title) for p in self._corpus))


class Recogniser:
    """Entities are what a spaCy model marks as a name: not as a number, an amount or a date.

    In a question the names count that were marked in passages. No other leads anywhere,
    and a small model would miss many of them in a question.

    Raises:
        ModelNotFoundError: The model is neither a folder nor in an installed package.
    """

    step = 256
    unnamed = frozenset({"CARDINAL", "ORDINAL", "QUANTITY", "PERCENT", "MONEY", "DATE", "TIME"})
    """Labels of what has no name of its own."""

    def __init__(self, model: str) -> None:
        place = locate(model)
        if not isinstance(place, Path):
            raise ModelNotFoundError(
                f"ner_model {model!r}: a folder or package:NAME/PATH is needed, "
                "such as package:en_core_web_sm/en_core_web_sm-3.8.0"
            )
        self.identity: Mapping[str, str] = {"entities": "ner", "model": digest_of(place)}
        self._place = place
        self._lock = threading.Lock()

    def of_passages(self, passages: Sequence[Passage]) -> list[list[str] | None]:
        """Return the names of the passage's own title, then what is marked in title and text.

        Raises:
            ModelNotFoundError: spaCy is not installed, or the model marks no names.
        """
        with self._lock:  # a pipeline writes into its vocabulary as it reads
            documents = list(self._pipeline.pipe(map(embedded_text, passages)))
        marked = [
            [normalised(entity.text) for entity in document.ents if entity.label_ not in self.unnamed]
            for document in documents
        ]
        return [_named(passage, names) for passage, names in zip(passages, marked, strict=True)]

    def of_question(self, text: str, known: Known) -> tuple[list[str], int]:
        """Return the names in a question that were marked in passages, at no token."""
        return known_names(text, known), 0

    @cached_property
    def _pipeline(self) -> Any:
        try:
            import spacy  # here: it is heavy, an extra, and not needed once the graph is built
        except ImportError as error:
            raise ModelNotFoundError("entities 'ner' need spaCy: install armwise[ner]") from error
        pipeline = spacy.load(self._place)
        if "ner" not in pipeline.pipe_names:
            has = ", ".join(pipeline.pipe_names) or "nothing"
            raise ModelNotFoundError(f"ner_model {self._place} has no `ner` component; it has: {has}")
        # what marks names, and what that reads; the rest takes time for nothing
        needed = [
            name
            for name, part in pipeline.pipeline
            if name == "ner" or "ner" in getattr(part, "listening_components", ())
        ]
        pipeline.select_pipes(enable=needed)
        return pipeline


class Lister:
    """Entities are what a language model lists, where the text has it.

    An answer that is no list of names is asked for once more. Which model answers is
    not known here: names stay as they are when the model changes.
    """

    step = 32
    at_once = 8
    """Passages that are asked about at the same time."""
    max_tokens = 512
    """Of a list: one that is cut short is none."""

    asked = (
        "You list the names in a text: of people, places, organisations, works, events and all else that has "
        "a name of its own. Answer with a JSON list of strings and nothing besides; write each name as the "
        "text writes it."
    )
    asked_again = "That is no JSON list of strings. Write the list alone; [] if the text has no name."

    def __init__(self, write: Write) -> None:
        prompts = hashlib.blake2b(f"{self.asked}\0{self.asked_again}".encode(), digest_size=8)
        self.identity: Mapping[str, str] = {"entities": "llm", "prompts": prompts.hexdigest()}
        self._write = write

    def of_passages(self, passages: Sequence[Passage]) -> list[list[str] | None]:
        """Return the names of the passage's own title, then those that the model lists."""
        with ThreadPoolExecutor(self.at_once) as pool:
            return list(pool.map(self._of_passage, passages))

    def of_question(self, text: str, known: Known) -> tuple[list[str], int]:
        """Return the names that the model lists, then known ones; and the tokens of all answers."""
        try:
            names, tokens = self._listed(text)
        except GeneratorError as error:
            raise ArmError(f"the names in the question could not be asked for: {error}") from error
        return distinct([*map(bare, names or ()), *known_names(text, known)]), tokens

    def _of_passage(self, passage: Passage) -> list[str] | None:
        try:
            names, _ = self._listed(embedded_text(passage))
        except base.PromptTooLongError:  # no other passage is to wait for it
            names = None
        return None if names is None else _named(passage, names)

    def _listed(self, text: str) -> tuple[list[str] | None, int]:
        """Return the names in a text, None where there is no list, and the tokens. Raises GeneratorError."""
        messages: tuple[Message, ...] = (
            {"role": "system", "content": self.asked},
            {"role": "user", "content": text},
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
                    {"role": "user", "content": self.asked_again},
                )
                continue
            within = f" {normalised(text)} "
            return [name for name in names if f" {name} " in within], tokens
        return None, tokens


def listed_names(answer: str) -> list[str]:
    """Return the strings of the JSON list in an answer. Raises ValueError where there is none.

    >>> listed_names('Here they are: ["Vienna", "Mozart"]')
    ['Vienna', 'Mozart']
    """
    names = orjson.loads(answer[answer.find("[") : answer.rfind("]") + 1])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"a list of strings is needed, got {answer!r}")
    return names


def _named(passage: Passage, names: Iterable[str]) -> list[str]:
    """Return the names of a passage's own title, then those that were found in it."""
    return distinct([*title_names(passage.title), *map(bare, names)])
