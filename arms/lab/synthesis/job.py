"""The job that makes questions from passages, and selects which to keep.

It works block by block and resumes after an interruption. Near-duplicates are left out, and each style gets
its share.

    passages in random order -> maker -> <output>.blocks -> selection
"""

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import orjson
from numpy.typing import NDArray

from armwise.arms.base import Progress
from armwise.arms.corpus import Corpus
from armwise.arms.lab.jobs import checkpoint
from armwise.arms.tokenizer import words

STYLES: Mapping[str, str] = {
    "keywords": "A search by the salient words of a passage.",
    "title": "A question of the title and a salient phrase.",
    "cloze": "A statement of the passage, asked for the name, date or number in it.",
    "link": "A question of one passage that describes another, which it mentions, in place of its name.",
    "compare": "A question of two passages about the same kind of thing.",
}
"""Styles of questions that are made by extraction."""

PROMPTED: Mapping[str, str] = {
    "keywords": "A search in a few words, as typed into a search box.",
    "natural": "A question as a person asks it, in words of their own.",
    "link": "A question that needs two passages; one of them mentions the title of the other.",
}
"""Styles of questions that a language model writes."""


class SynthesisError(ValueError):
    """Questions cannot be made; the message names the setting or the corpus."""


class NoQuestionsError(SynthesisError):
    """No passage yields a question."""


@dataclass(frozen=True, slots=True)
class Made:
    """A question that was made from passages.

    Attributes:
        question: The text.
        gold_ids: Ids of the passages that it was made from.
        style: Name from `STYLES` or `PROMPTED`.
        answers: Right answers, if the passages give them.
    """

    question: str
    gold_ids: tuple[str, ...]
    style: str
    answers: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """The style, and a digest of the text."""
        digest = hashlib.blake2b(self.question.encode(), digest_size=6).hexdigest()
        return f"{self.style}/{digest}"

    def document(self) -> dict[str, Any]:
        """Return the question as a line of a file of questions.

        >>> Made("Who wrote Faust?", ("7",), "cloze", ("Goethe",)).document()["answers"]
        ('Goethe',)
        """
        fields = asdict(self)
        return {"id": self.id, "type": fields.pop("style"), **fields}


class Maker(Protocol):
    """Makes questions from passages; thread-safe, and deterministic if its model is.

    Attributes:
        identity: Identity of the questions.
        styles: Styles of the questions.
        step: Passages per block.
    """

    identity: Mapping[str, str]
    styles: tuple[str, ...]
    step: int

    def make(self, positions: Sequence[int]) -> list[list[Made]]:
        """Return the questions made from each of these passages of the corpus.

        Raises:
            GeneratorError: The language model failed.
        """
        ...


ALIKE = 0.8
"""Jaccard similarity of content words from which two questions are near-duplicates."""


EACH = 100
"""Questions of a corpus that are kept even if another one gives fewer."""


class KeptQuestions:
    """A selection of questions by style, at first one per passage.

    Args:
        n: Number of questions to keep.
        shares: Weight of each style, positive.

    Attributes:
        kept: The kept questions, in the order in which they were added.
        duplicates: Number of near-duplicates that were left out.
    """

    def __init__(self, n: int, shares: Mapping[str, float]) -> None:
        self.kept: list[Made] = []
        self.duplicates = 0
        self._n = n
        total = sum(shares.values())
        self._due = {style: n * share / total for style, share in shares.items()}
        self._counts: Counter[str] = Counter()
        self._by_word: defaultdict[str, list[int]] = defaultdict(list)
        self._content: list[frozenset[str]] = []
        self._spare: list[Made] = []

    @property
    def complete(self) -> bool:
        """Whether `n` questions are kept."""
        return len(self.kept) >= self._n

    def add(self, candidates: Sequence[Made]) -> None:
        """Keep the question of a passage whose style is furthest below its share; save the others."""
        left = sorted(candidates, key=self._missing, reverse=True)
        while left and not self.complete:
            if self._missing(left[0]) <= 0.0 or self._keep(left.pop(0)):
                break
        self._spare += left

    def fill(self) -> None:
        """Keep saved questions until complete, each time of the style that is furthest below its share."""
        waiting: defaultdict[str, list[Made]] = defaultdict(list)
        for made in reversed(self._spare):
            waiting[made.style].append(made)
        self._spare = []
        while waiting and not self.complete:
            style = max(waiting, key=lambda name: self._due[name] - self._counts[name])
            self._keep(waiting[style].pop())
            if not waiting[style]:
                del waiting[style]

    def level(self, prefixes: Sequence[str], seed: int) -> None:
        """Leave out questions at random until no corpus has more than the smallest has, or than `EACH`.

        A router trained on the questions expects traffic in their proportions, which say only how large
        the corpora are.

        Args:
            prefixes: How the ids of the passages of each corpus begin.
            seed: Seed that chooses the questions.
        """
        rows: defaultdict[str, list[int]] = defaultdict(list)
        for row, made in enumerate(self.kept):
            rows[next(prefix for prefix in prefixes if made.gold_ids[0].startswith(prefix))].append(row)
        most, rng = max(EACH, min(map(len, rows.values()))), np.random.default_rng(seed)
        left = sorted(row for some in rows.values() for row in rng.permutation(some)[:most].tolist())
        self.kept = [self.kept[row] for row in left]

    def _missing(self, made: Made) -> float:
        """Return the fraction of the share of a question's style that is still missing."""
        due = self._due[made.style]
        return (due - self._counts[made.style]) / due

    def _keep(self, made: Made) -> bool:
        """Keep a question, or count it as a near-duplicate; return whether it is kept."""
        content = frozenset(words(made.question, "english"))
        if not content or self._alike(content):
            self.duplicates += 1
            return False
        for word in content:
            self._by_word[word].append(len(self.kept))
        self._content.append(content)
        self._counts[made.style] += 1
        self.kept.append(made)
        return True

    def _alike(self, content: Iterable[str]) -> bool:
        content = frozenset(content)
        common = Counter(at for word in content for at in self._by_word.get(word, ()))
        return any(
            shared >= ALIKE * (len(content) + len(self._content[at]) - shared)
            for at, shared in common.items()
        )


PATIENCE = 4
"""Passages per requested question, after which saved questions are kept whatever their style."""


def synthesize(
    corpus: Corpus,
    maker: Maker,
    output: Path,
    n: int,
    shares: Mapping[str, float],
    seed: int,
    progress: Progress,
) -> KeptQuestions:
    """Make n questions from passages in random order, and write them to a file.

    Passages of different corpora alternate, and each corpus gives as many questions, whatever its size,
    because future traffic is unknown. If a small one gives fewer, questions of the others are left out.

    Args:
        corpus: The passages.
        maker: Makes questions from passages.
        output: The file of JSON lines; until it is written, finished blocks are in `<output>.blocks`.
        n: Number of questions; fewer are kept if the passages, or those of one corpus, give no more.
        shares: Weight of each style.
        seed: Seed that shuffles the passages.
        progress: Progress callback.

    Raises:
        SynthesisError: The passages gave no question.
        JobError: The blocks are from other settings, or another process is working on them.
        GeneratorError: The language model failed; finished blocks are kept.
    """
    order = shuffle_positions(corpus, seed)
    selection = KeptQuestions(n, shares)
    identity = {
        "corpus": corpus.digest,
        "seed": str(seed),
        "styles": ", ".join(maker.styles),
        **maker.identity,
    }
    with checkpoint.open_blocks(output, identity) as blocks:
        finished = blocks.list_finished()
        for number in range(math.ceil(len(order) / maker.step)):
            if number in finished:
                made = [
                    [_parse_question(document) for document in of_passage]
                    for of_passage in orjson.loads(blocks.read(number))
                ]
            else:
                made = maker.make(order[number * maker.step : (number + 1) * maker.step].tolist())
                blocks.write(
                    number, orjson.dumps([[question.document() for question in some] for some in made])
                )
            for candidates in made:
                selection.add(candidates)
            if (number + 1) * maker.step >= min(PATIENCE * n, len(order)):
                selection.fill()
            progress("making questions", len(selection.kept), n)
            if selection.complete:
                break
        if not selection.kept:
            raise NoQuestionsError(f"no passage of corpus {corpus.name!r} yielded a question of these styles")
        selection.level(list(corpus.parts), seed)
        written = output.with_name(f"{output.name}.part")
        written.write_bytes(
            b"".join(orjson.dumps(question.document()) + b"\n" for question in selection.kept)
        )
        written.replace(output)
        blocks.delete()
    return selection


def shuffle_positions(corpus: Corpus, seed: int) -> NDArray[np.intp]:
    """Return all positions in random order, alternating between corpora, shape (n_passages,)."""
    rng = np.random.default_rng(seed)
    parts = [rng.permutation(len(part)) + corpus.start(prefix) for prefix, part in corpus.parts.items()]
    turns = np.concatenate([np.arange(len(part)) for part in parts])
    return np.concatenate(parts)[np.argsort(turns, kind="stable")]


def _parse_question(document: dict[str, Any]) -> Made:
    """Return the question that a document of a block describes."""
    gold, answers = tuple(document["gold_ids"]), tuple(document["answers"])
    return Made(document["question"], gold, document["type"], answers)
