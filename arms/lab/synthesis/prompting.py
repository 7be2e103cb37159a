"""Questions that a language model writes from passages, kept if they pass a round trip.

The round trip: the model answers its question from the passages, without seeing its first answer, and both
answers must agree. A question that mentions "the passage", or contains its answer, is left out.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from armwise.arms.base import Passage
from armwise.arms.corpus import Corpus
from armwise.arms.lab.synthesis.extraction import Extraction
from armwise.arms.lab.synthesis.job import Made
from armwise.arms.llm import Prompt, Write, prompts, quotation, structured_output
from armwise.arms.tokenizer import count_words, normalise, words

TASKS: Mapping[str, str] = {
    "keywords": "Write what a person who needs this passage would type into a search box: two to six words, "
    "no sentence. The answer is what that person would look for.",
    "natural": "Write one question that this passage answers, as a person asks it who has not read the "
    "passage: in other words than those of the passage, clear without it, of at most twenty words.",
    "link": "Write one question that can only be answered with both passages: describe the subject of one of "
    "them by what the other says, and do not name it. It must be clear without the passages.",
}

FORM = 'Answer with one JSON object: {"question": "...", "answer": "..."}; the answer in a few words.'

WORD_BUDGET = 300
"""Most words of the passages in a prompt."""

MAX_TOKENS = 160

AGREES = 0.5
"""Share of the words of the shorter answer that the other answer must contain."""

TOKENS_PER_WORD = 1.4
"""Tokens per word of English text, for the estimate of the cost."""

_OF_PASSAGE = re.compile(
    r"\b(?:the|this|these|both|first|second|given)\s+(?:passages?|texts?|articles?|paragraphs?|excerpts?|snippets?)\b"
    r"|according to the\b",
    re.IGNORECASE,
)


class WrittenQuestion(BaseModel):
    """A question and its answer, as the model writes them."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    question: str = Field(min_length=3, max_length=400)
    answer: str = Field(min_length=1, max_length=300)


class Prompting:
    """Makes one question per passage; styles rotate by position.

    Args:
        corpus: The passages.
        write: Prompts the language model.
        styles: Names from `PROMPTED`.
        extraction: Finds the titles that a passage mentions.
        model: Digest of the language model's specification.
        at_once: Concurrent prompts.
    """

    step = 16

    def __init__(
        self,
        corpus: Corpus,
        write: Write,
        styles: Sequence[str],
        extraction: Extraction,
        model: str,
        at_once: int = 8,
    ) -> None:
        self.styles = tuple(styles)
        digest = hashlib.blake2b("\0".join([*TASKS.values(), FORM]).encode(), digest_size=8).hexdigest()
        self.identity: Mapping[str, str] = {"made by": f"a language model {model}", "prompts": digest}
        self._corpus, self._write, self._extraction, self._at_once = corpus, write, extraction, at_once

    def make(self, positions: Sequence[int]) -> list[list[Made]]:
        """Return the question that the model writes from each passage, if it passes the round trip."""
        passages = self._corpus.passages(positions)
        # by position: a passage has the same style in any block
        styles = [self.styles[position % len(self.styles)] for position in positions]
        with ThreadPoolExecutor(self._at_once) as pool:
            return [[made] if made else [] for made in pool.map(self._make_question, passages, styles)]

    def _make_question(self, passage: Passage, style: str) -> Made | None:
        passages = [passage]
        if style == "link":
            if (linked := next(self._extraction.find_links(passage), None)) is None:
                return None
            passages.append(linked[1])
        caller = structured_output.StructuredCaller(self._write, structured_output.UnreadableAnswerError)
        case = prompts.passage_block(passages, WORD_BUDGET)
        try:
            written = caller.ask(
                f"{TASKS[style]} {quotation.ONLY_DATA}",
                case,
                FORM,
                lambda text: structured_output.read_object(WrittenQuestion, text),
                max_tokens=MAX_TOKENS,
            )
        except structured_output.UnreadableAnswerError:
            return None
        question = " ".join(written.question.split())
        if not usable(question, written.answer, passages, style) or not self._is_confirmed(
            question, written.answer, passages, style
        ):
            return None
        answers = () if style == "keywords" else (written.answer.strip(),)
        return Made(question, tuple(source.id for source in passages), style, answers)

    def _is_confirmed(self, question: str, answer: str, passages: Sequence[Passage], style: str) -> bool:
        """Return whether the model's answer agrees with its first; keywords are exempt, having no answer."""
        if style == "keywords":
            return True
        prompt = prompts.Writing(prompts.Form.SHORT, WORD_BUDGET, 32).prompt(question, passages)
        again, _ = self._write(Prompt(prompt, 32))
        return agrees(answer, again)


def usable(question: str, answer: str, passages: Sequence[Passage], style: str) -> bool:
    """Return whether a question shares words with each passage, and avoids "the passage" and its answer.

    >>> usable("What does the passage say?", "much", [Passage("1", "", "It says much.")], "natural")
    False
    """
    if _OF_PASSAGE.search(question):
        return False
    question_words = set(words(question, "english"))
    if not all(question_words & set(words(f"{passage.title} {passage.text}")) for passage in passages):
        return False
    return style == "keywords" or f" {normalise(answer)} " not in f" {normalise(question)} "


def agrees(one: str, other: str) -> bool:
    """Return whether two answers share at least half of the words of the shorter one.

    >>> agrees("the Gulf of Mexico", "Gulf of Mexico."), agrees("1876", "in 1877")
    (True, False)
    """
    a, b = set(normalise(one).split()), set(normalise(other).split())
    return bool(a and b) and len(a & b) >= AGREES * min(len(a), len(b))


def estimate_tokens(corpus: Corpus, styles: Sequence[str], n: int) -> tuple[int, int, int]:
    """Estimate the calls of the model, and the tokens that it reads and writes, for `n` questions.

    Extrapolated from the lengths of 200 passages, as if every question passed the round trip. Failed attempts
    cost in proportion; with a small model about half of all fail.
    """
    at = np.linspace(0, len(corpus) - 1, min(len(corpus), 200)).round().astype(int).tolist()
    lengths = [count_words(passage.text) for passage in corpus.passages(at)]
    mean = float(np.minimum(lengths, WORD_BUDGET).mean())
    calls, read, written = 0.0, 0.0, 0.0
    for style in styles:
        shown = min(mean * (2 if style == "link" else 1), WORD_BUDGET)
        task = len(f"{TASKS[style]} {quotation.ONLY_DATA} {FORM}".split())
        trips = 1 if style == "keywords" else 2
        calls += trips
        read += shown * trips + task + 40 * (trips - 1)
        written += 40 + 10 * (trips - 1)
    share = n / len(styles)
    return round(calls * share), round(read * share * TOKENS_PER_WORD), round(written * share)
