"""The verdict of pairs: switch to the challenger, keep the reference, or not yet.

    StoredPair ... --make_verdict--> PairsVerdict --JSON--> read_verdict --> verify_pairs --> what differs

The document has the pairs as numbers, without a question or an answer, so that all figures can be computed
again from it alone. Which request is drawn when follows from the seed and from the sizes of the classes.
It is about the requests of the file, or about its conversations if one request of each was taken, and about
what this judge says of them.
"""

import time
from collections.abc import Mapping, Sequence
from enum import StrEnum
from importlib import metadata
from math import nan
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, Field

from armwise.agent.proof import judged_pairs
from armwise.agent.proof.documents import (
    Finite,
    Name,
    Number,
    ProofDocument,
    Stated,
    find_format,
    list_differences,
    read_document,
    write_document,
)
from armwise.agent.proof.judged_pairs import GroupComparison, JudgedPairs, Word
from armwise.agent.proof.noninferiority import Ends
from armwise.feedback.arrays import Integers

METHOD = "betting confidence sequences of judged pairs: each request once, in random order"

METHOD_VERSION = 2
"""Rises when the same pairs give other figures."""

LARGEST_FILE = 1 << 28
"""Most bytes of a verdict."""

ENOUGH_BOTH = 10
"""Pairs in both orders with a better answer from which on a judge can be found to follow the place."""

FOLLOWS_PLACE = 0.5
"""Part of them in which both verdicts name the same place, from which on no verdict is given."""

Value = Annotated[float, Field(ge=-1.0, le=1.0, allow_inf_nan=False)]

Amount = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


class PairOutcome(StrEnum):
    """How a pair ended."""

    JUDGED = "judged"
    EQUAL = "equal"
    """Both answers have the same words: neither is better, and no judge is asked."""

    UNREADABLE = "unreadable"
    """The judge gave no verdict, or refused: not known."""

    CHALLENGER_FAILED = "challenger_failed"
    REFERENCE_FAILED = "reference_failed"
    BOTH_FAILED = "both_failed"


VALUES: Mapping[PairOutcome, float] = {
    PairOutcome.EQUAL: 0.0,
    PairOutcome.UNREADABLE: nan,
    PairOutcome.CHALLENGER_FAILED: -1.0,
    PairOutcome.REFERENCE_FAILED: 1.0,
    PairOutcome.BOTH_FAILED: 0.0,
}
"""Value of a pair that was not judged."""


class StoredPair(Stated):
    """A request that both arms answered."""

    group: Number = Field(description="Number of its class.")
    member: Number = Field(description="Number of the request in its class.")
    outcome: PairOutcome
    shown_first: Value | None = Field(
        default=None, description="Challenger minus reference, where the judge read the challenger first."
    )
    shown_second: Value | None = Field(default=None, description="The same in the other order.")
    usd: tuple[Amount, Amount, Amount] = Field(description="Dollars of challenger, reference and judge.")
    seconds: tuple[Amount, Amount] = Field(description="Seconds of challenger and reference.")
    label: Value | None = Field(default=None, description="Your own verdict.")

    @property
    def verdicts(self) -> list[float]:
        """The verdicts of the judge."""
        return [one for one in (self.shown_first, self.shown_second) if one is not None]

    @property
    def value(self) -> float:
        """Challenger minus reference, in [-1, 1]; NaN: not known."""
        if self.outcome is PairOutcome.JUDGED:
            return sum(self.verdicts) / len(self.verdicts) if self.verdicts else nan
        return VALUES[self.outcome]


class RequestClass(Stated):
    """A class of requests."""

    name: Name
    requests: Annotated[int, Field(ge=1, le=1 << 53)]


class JudgeFigures(Stated):
    """How far the judge can be trusted."""

    asked: Number = Field(description="Pairs that it was asked about.")
    unreadable: Number = Field(description="Pairs without a verdict.")
    first: Finite | None = Field(description="Mean preference for the first answer, in [-1, 1].")
    both: Number = Field(description="Pairs in both orders, unless both verdicts are that neither is better.")
    same_place: Number = Field(description="Those in which both verdicts name the same place.")
    labels: Number = Field(description="Labels that were given.")
    agreed: Number = Field(description="Those that are as the judge said.")

    @property
    def follows_place(self) -> bool:
        """Whether it says more of places than of answers, so that no verdict is given."""
        return self.both >= ENOUGH_BOTH and self.same_place > FOLLOWS_PLACE * self.both


class VerdictFigures(Stated):
    """All that is stated."""

    word: Word
    whole: GroupComparison
    groups: list[GroupComparison | None]
    by_judge: Ends | None = Field(description="The difference without the labels; null: there are none.")
    judge: JudgeFigures
    usd: tuple[Finite, Finite] = Field(description="Dollars a request of challenger and reference.")
    seconds: tuple[Finite, Finite] = Field(description="Seconds a request of challenger and reference.")
    spent: Finite = Field(description="Dollars of all answers and verdicts.")
    more: tuple[Number, Number] | None = Field(description="About so many further pairs; null: not known.")
    more_usd: tuple[Finite, Finite] | None = Field(description="About so many further dollars.")


class PairsVerdict(ProofDocument):
    """A verdict on two arms, and all that is needed to compute it again."""

    format: Literal["armwise-verdict"] = "armwise-verdict"
    number: Literal[1] = Field(default=1, alias="schema")
    armwise: Name
    made_at: Finite
    source: Name = Field(description="The file of requests, or the log.")
    digest: str = Field(
        pattern="^[0-9a-f]{64}$", description="SHA-256 of the requests; of a log, of its pairs."
    )
    method: Name = METHOD
    method_version: Number = METHOD_VERSION
    error: Annotated[float, Field(gt=0.0, lt=1.0)] = judged_pairs.ERROR
    challenger: Name
    reference: Name
    judge: Name
    margin: Annotated[float, Field(ge=0.0, le=2.0)] = Field(description="Largest loss that is accepted.")
    by: Name = Field(description="Field of a request that names its class; empty: none does.")
    each: Name = Field(
        default="", description="Field that names its conversation; empty: it is about requests."
    )
    seed: Number | None = Field(description="Seed of the draws; null: the pairs are in the order of a log.")
    classes: Annotated[list[RequestClass], Field(min_length=1)]
    drawn: Annotated[int, Field(ge=1, le=1 << 53)]
    labelled: Number = Field(description="First requests of the random order for which labels were asked.")
    pairs: list[StoredPair]
    figures: VerdictFigures


class PairDraws(BaseModel):
    """What is drawn from, how, and how often: the part of a verdict that says which pairs count, and when.

    Attributes:
        sizes: Requests of each class.
        seed: Seed of the draws; None: the pairs are in the order of a log.
        drawn: Number of draws.
        labelled: First requests of the random order for which labels were asked.
    """

    sizes: tuple[int, ...]
    seed: int | None
    drawn: int
    labelled: int = 0

    def draw(self) -> tuple[list[tuple[int, int]], Integers]:
        """Return class and number of each request that is drawn, and its place in the random order."""
        if self.seed is None:
            return [(0, member) for member in range(self.drawn)], np.arange(self.drawn)
        group, member, place = judged_pairs.draw(self.sizes, self.drawn, self.seed)
        return list(zip(group.tolist(), member.tolist(), strict=True)), place


def order_pairs(draw: PairDraws, stored: Sequence[StoredPair]) -> tuple[list[StoredPair], Integers]:
    """Return the pair of each draw, and its place. Raises ValueError if one is missing, or is there twice."""
    by_request = {(one.group, one.member): one for one in stored}
    if len(by_request) < len(stored):
        raise ValueError("a request has two pairs")
    order, place = draw.draw()
    if missing := {*order} - by_request.keys():
        raise ValueError(f"{len(missing):,} of the requests that the seed draws have no pair")
    if len(order) < len(stored):
        raise ValueError(f"{len(stored) - len(order):,} pairs are of requests that the seed does not draw")
    return [by_request[one] for one in order], place


def as_pairs(draw: PairDraws, ordered: Sequence[StoredPair], place: Integers) -> JudgedPairs:
    """Return the pairs as the estimate takes them."""
    first = [ordered[at] for at in judged_pairs.find_sample(place).tolist()][: draw.labelled]
    return JudgedPairs(
        np.array([one.value for one in ordered]),
        np.array([one.group for one in ordered], dtype=np.int64),
        len(draw.sizes),
        place,
        np.array([nan if one.label is None else one.label for one in first]) if first else None,
        moves=draw.seed is None,
    )


def decide_now(draw: PairDraws, ordered: Sequence[StoredPair], place: Integers, margin: float) -> Word:
    """Return the verdict of the pairs so far."""
    difference = judged_pairs.compare(as_pairs(draw, ordered, place)).whole.difference
    return Word.NOT_YET if describe_judge(ordered).follows_place else judged_pairs.decide(difference, margin)


def compute_figures(draw: PairDraws, stored: Sequence[StoredPair], margin: float) -> VerdictFigures:
    """Compute all that a verdict states.

    Args:
        draw: Which pairs count, and in which order.
        stored: A pair of each request that is drawn.
        margin: Largest loss that is accepted, in [0, 2].

    Raises:
        ValueError: A pair is missing, or is not drawn.
    """
    ordered, place = order_pairs(draw, stored)
    arrays = as_pairs(draw, ordered, place)
    found = judged_pairs.compare(arrays)
    judge = describe_judge(stored)
    word = Word.NOT_YET if judge.follows_place else judged_pairs.decide(found.whole.difference, margin)
    spent, n = sum(sum(one.usd) for one in stored), len(ordered)
    more = more_usd = None
    if word is Word.NOT_YET and not judge.follows_place and arrays.labels is None:
        more = judged_pairs.forecast_more(arrays, margin)
    if more is not None:
        more_usd = (more[0] * spent / n, more[1] * spent / n)
    usd, seconds = (
        np.mean([getattr(ordered[at], name)[:2] for at in arrays.of_all.tolist()], axis=0).tolist()
        for name in ("usd", "seconds")
    )
    return VerdictFigures(
        word=word,
        whole=found.whole,
        groups=list(found.groups),
        by_judge=found.by_judge,
        judge=judge,
        usd=usd,
        seconds=seconds,
        spent=spent,
        more=more,
        more_usd=more_usd,
    )


def describe_judge(stored: Sequence[StoredPair]) -> JudgeFigures:
    """Return how far the judge can be trusted."""
    asked = [one for one in stored if one.outcome in (PairOutcome.JUDGED, PairOutcome.UNREADABLE)]
    # of the preference for the first answer, the two orders of a pair are independent observations
    first = [one.shown_first for one in asked if one.shown_first is not None]
    first += [-one.shown_second for one in asked if one.shown_second is not None]
    both = [one for one in asked if len(one.verdicts) == 2 and any(one.verdicts)]
    labelled = [one for one in asked if one.label is not None]
    return JudgeFigures(
        asked=len(asked),
        unreadable=sum(one.outcome is PairOutcome.UNREADABLE for one in asked),
        first=sum(first) / len(first) if first else None,
        both=len(both),
        same_place=sum(one.verdicts[0] == -one.verdicts[1] for one in both),
        labels=len(labelled),
        agreed=sum(one.label == one.value for one in labelled),
    )


def make_verdict(
    draw: PairDraws, stored: Sequence[StoredPair], margin: float, classes: Sequence[str], **described: Any
) -> PairsVerdict:
    """State what the pairs say.

    Args:
        draw: Which pairs count, and in which order.
        stored: A pair of each request that is drawn.
        margin: Largest loss that is accepted, in [0, 2].
        classes: Names of the classes.
        **described: The other fields of the verdict.

    Raises:
        ValueError: A pair is missing.
    """
    return PairsVerdict(
        armwise=metadata.version("armwise"),
        made_at=time.time(),
        margin=margin,
        seed=draw.seed,
        classes=[RequestClass(name=name, requests=n) for name, n in zip(classes, draw.sizes, strict=True)],
        drawn=draw.drawn,
        labelled=draw.labelled,
        pairs=list(stored),
        figures=compute_figures(draw, stored, margin),
        **described,
    )


def verify_pairs(verdict: PairsVerdict) -> list[str]:
    """Compute a verdict again from its pairs; return what differs, a sentence each."""
    if (verdict.method, verdict.method_version) != (METHOD, METHOD_VERSION):
        return [
            f"method: it was made by version {verdict.method_version} of {verdict.method!r}, this Armwise "
            f"has version {METHOD_VERSION} of {METHOD!r}: use Armwise {verdict.armwise}"
        ]
    differences = []
    if verdict.error != judged_pairs.ERROR:
        differences.append(f"error: {verdict.error:g} in the verdict, {judged_pairs.ERROR:g} here")
    sizes = tuple(one.requests for one in verdict.classes)
    draw = PairDraws(sizes=sizes, seed=verdict.seed, drawn=verdict.drawn, labelled=verdict.labelled)
    try:
        again = compute_figures(draw, verdict.pairs, verdict.margin)
    except ValueError as error:
        return [*differences, f"pairs: {error}"]
    places = "in the verdict", "from its pairs"
    return [*differences, *list_differences(verdict.figures.model_dump(), again.model_dump(), places)]


def is_verdict(path: Path) -> bool:
    """Return whether a file begins as a verdict does, not as a receipt."""
    return find_format(path) == "armwise-verdict"


def read_verdict(path: Path) -> PairsVerdict:
    """Read a verdict. Raises ExchangeError: it cannot be read; the message names the file and the value."""
    return read_document(path, PairsVerdict, "verdict", LARGEST_FILE)


def write_verdict(verdict: PairsVerdict, path: Path) -> None:
    """Write a verdict as JSON."""
    write_document(verdict, path, indent=1)
