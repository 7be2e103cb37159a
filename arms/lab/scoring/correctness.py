"""Answer correctness: the F1 of the claims of an answer and of a right answer, and their similarity.

    answer, reference --LLM--> their claims --LLM--> TP, FP, FN --> F1 of claims --.
                      --embed--> cosine -------------------------------------------+--> value in [0, 1]

It needs a model that writes structured output. After unreadable text the model is prompted again; when all
attempts are unreadable, the score is unknown.

    ArmError
    `-- UnreadableAnswerError
        `-- CorrectnessError  all attempts to get claims, or their classes, were unreadable
"""

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from armwise.arms.llm import Write, quotation, structured_output

Claims = tuple[str, ...]

EmbedTexts = Callable[[Sequence[str]], NDArray[np.float32]]
"""Texts -> one vector each, shape (n_texts, dim)."""

MAX_TOKENS = 512
"""Most tokens of a list of claims or their classes; truncated text would be unreadable."""

CACHED_REFERENCES = 4096
"""References whose claims are cached, least recently used evicted first."""

CLAIMS_SYSTEM = (
    "You break an answer into its claims. A claim is one short sentence that states one fact and can be "
    "understood alone, with names instead of pronouns. Add nothing that the answer does not state. "
    + quotation.ONLY_DATA
)

CLAIMS_FORM = (
    'Write only a JSON list of strings: ["first claim", "second claim"]. Write [] if it states no fact.'
)

CLASSES_SYSTEM = (
    "You compare the claims of an answer (A1, A2, ...) with those of the right answer (R1, R2, ...). "
    "TP: claims A that the right answer supports. FP: all other claims A. "
    "FN: claims R that the answer does not have."
)

CLASSES_FORM = 'Write only JSON with the names of the claims, such as {"TP": ["A1"], "FP": [], "FN": ["R2"]}'


class CorrectnessError(structured_output.UnreadableAnswerError):
    """All attempts to get claims, or their classes, were unreadable."""

    summary: ClassVar[str] = "the language model could not compare the answer with the right one"


class _Classes(BaseModel):
    """The classes of claims as the model writes them."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    TP: list[str]
    FP: list[str]
    FN: list[str]


@dataclass(frozen=True, slots=True)
class Correctness:
    """The correctness of an answer by its best reference.

    Attributes:
        value: The weighted mean of `claims_f1` and `similarity`, in [0, 1].
        claims_f1: F1 of the claims, in [0, 1].
        similarity: Cosine of the embedded texts, clipped to [0, 1].
        tp: Claims of the answer that the reference supports.
        fp: Claims of the answer that the reference lacks.
        fn: Claims of the reference that the answer lacks.
        tokens: Tokens read and written, for all references and attempts.
        malformed: Unreadable texts of the language model.
    """

    value: float
    claims_f1: float
    similarity: float
    tp: int
    fp: int
    fn: int
    tokens: int
    malformed: int


@dataclass(slots=True)
class _Right:
    """The claims of a reference, empty before the model has listed them."""

    claims: Claims = ()
    lock: threading.Lock = field(default_factory=threading.Lock)


class AnswerCorrectness:
    """Compares answers with right ones, and caches the claims of references; thread-safe.

    Args:
        write: Prompts the language model.
        embed: Embeds the answer and the references.
        weights: Weights of claims and similarity; only their ratio counts.
        retries: Further attempts after unreadable text.

    Raises:
        ValueError: The weights are negative, or both 0.

    Source: answer correctness of the RAGAS library (Es et al. 2023, arXiv:2309.15217), with its
    weights.
    """

    def __init__(
        self,
        write: Write,
        embed: EmbedTexts,
        *,
        weights: tuple[float, float] = (0.75, 0.25),
        retries: int = 1,
    ) -> None:
        if not (min(weights) >= 0 and 0 < sum(weights) < math.inf):
            raise ValueError(f"weights {weights} must not be negative, and not both 0")
        self._write = write
        self._embed = embed
        self._weights = weights
        self._retries = retries
        self._known: OrderedDict[tuple[str, str], _Right] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, question: str, answer: str, references: Sequence[str]) -> Correctness:
        """Compare an answer with each reference, and return the best comparison.

        An answer without claims has an F1 of 0; a blank answer also has a similarity of 0.

        Raises:
            CorrectnessError: All attempts to get claims, or their classes, were unreadable.
            GeneratorError: The language model failed.
            ValueError: `references` is empty, or contains a blank text.
        """
        if not references or not all(reference.strip() for reference in references):
            raise ValueError(f"references {list(references)} must be one or more texts, none of them blank")
        caller = structured_output.StructuredCaller(self._write, CorrectnessError, retries=self._retries)
        claims = _claims(caller, question, answer)
        similarities = (
            cosines(self._embed([answer, *references])) if answer.strip() else [0.0] * len(references)
        )
        scores = [
            self._compare(caller, question, claims, reference, similarity)
            for reference, similarity in zip(references, similarities, strict=True)
        ]
        best = max(scores, key=lambda each: each.value)
        return replace(best, tokens=caller.tokens, malformed=caller.malformed)

    def _compare(
        self,
        caller: structured_output.StructuredCaller,
        question: str,
        claims: Claims,
        reference: str,
        similarity: float,
    ) -> Correctness:
        """Compare an answer with one reference; tokens and malformed texts are cumulative."""
        tp, fp, fn = _classes(caller, question, claims, self._right(caller, question, reference))
        f1 = claims_f1(tp, fp, fn)
        for_claims, for_similarity = self._weights
        value = (for_claims * f1 + for_similarity * similarity) / (for_claims + for_similarity)
        return Correctness(value, f1, similarity, tp, fp, fn, caller.tokens, caller.malformed)

    def _right(self, caller: structured_output.StructuredCaller, question: str, reference: str) -> Claims:
        """Return the claims of a reference, or else the reference itself; one thread at a time asks."""
        key = question, reference
        with self._lock:
            right = self._known.setdefault(key, _Right())
            self._known.move_to_end(key)
            while len(self._known) > CACHED_REFERENCES:
                self._known.popitem(last=False)
        with right.lock:
            if not right.claims:
                right.claims = _claims(caller, question, reference) or (reference,)
            return right.claims


def claims_f1(tp: int, fp: int, fn: int) -> float:
    """Return the F1 of claims, in [0, 1].

    >>> claims_f1(tp=2, fp=1, fn=1)
    0.6666666666666666
    """
    return tp / (tp + (fp + fn) / 2) if tp else 0.0


def cosines(vectors: NDArray[np.float32]) -> list[float]:
    """Return the cosine of the first row with each of the others, clipped to [0, 1].

    >>> cosines(np.array([[1, 0], [2, 0], [0, 1], [-1, 0]], dtype=np.float32))
    [1.0, 0.0, 0.0]
    """
    wide = vectors.astype(np.float64)
    norms = np.linalg.norm(wide, axis=1)
    # the cosine with a zero vector is 0
    products = wide[1:] @ wide[0] / np.maximum(norms[1:] * norms[0], np.finfo(np.float64).tiny)
    return [float(product) for product in np.clip(products, 0.0, 1.0)]


def _claims(caller: structured_output.StructuredCaller, question: str, text: str) -> Claims:
    """Return the claims of a text; a blank text has none."""
    if not text.strip():
        return ()
    case = f"{quotation.enclose('question', question)}\n{quotation.enclose('answer', text)}"
    return caller.ask(CLAIMS_SYSTEM, case, CLAIMS_FORM, parse_claims, max_tokens=MAX_TOKENS)


def parse_claims(text: str) -> Claims:
    """Return the distinct non-blank strings of the first JSON list of strings in a text.

    >>> parse_claims('Claims [1]: ["Vienna is a city.", "Vienna is in Austria."]')
    ('Vienna is a city.', 'Vienna is in Austria.')

    Raises:
        ValueError: The text has no such list.
    """
    lists = list(structured_output.json_values(text, "["))
    if not any(
        isinstance(claim, list) for value in lists for claim in value
    ):  # a part of a nested list is not the list
        for value in lists:
            if all(isinstance(claim, str) for claim in value):
                return tuple(dict.fromkeys(claim.strip() for claim in value if claim.strip()))
    raise ValueError(f"{structured_output.quote_start(text)} has no JSON list of strings")


def _classes(
    caller: structured_output.StructuredCaller, question: str, claims: Claims, right: Claims
) -> tuple[int, int, int]:
    """Return the numbers of TP, FP and FN; an answer without claims needs no prompt."""
    if not claims:
        return 0, 0, len(right)
    ours = {f"A{number}": claim for number, claim in enumerate(claims, start=1)}
    theirs = {f"R{number}": claim for number, claim in enumerate(right, start=1)}

    def read(text: str) -> tuple[int, int, int]:
        classes = structured_output.read_object(_Classes, text)
        if sorted(classes.TP + classes.FP) != sorted(ours):
            raise ValueError(
                f"{structured_output.quote_start(text)} must have each of {', '.join(ours)} once, in TP or "
                "in FP"
            )
        if len(set(classes.FN)) < len(classes.FN) or not set(classes.FN) <= set(theirs):
            raise ValueError(
                f"{structured_output.quote_start(text)} may have each of {', '.join(theirs)} "
                "once in FN, and no other"
            )
        return len(classes.TP), len(classes.FP), len(classes.FN)

    listed = "\n".join(f"{name}: {quotation.one_line(claim)}" for name, claim in (ours | theirs).items())
    case = f"{quotation.enclose('question', question)}\n\n{listed}"
    return caller.ask(CLASSES_SYSTEM, case, CLASSES_FORM, read, max_tokens=MAX_TOKENS)
