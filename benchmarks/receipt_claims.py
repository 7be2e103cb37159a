"""What a colleague reads in the sentences about savings and quality, and whether it is true of a world.

A sentence is about all answers, compared with a service that always used the large arm, unless it says itself
what it is about. A sentence with a dollar or a point that cannot be read is an error.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from math import inf, isnan
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import track

from armwise.agent.proof import judged_answers, noninferiority
from armwise.agent.proof.judged import AnswerAudit
from armwise.agent.proof.noninferiority import NothingComparableError, Sessions, Settlement, Unsaid
from armwise.agent.proof.statements import (
    describe_reward,
    state_audited,
    state_best_arm,
    state_dollars,
    state_quality,
)
from armwise.feedback.arrays import Integers
from armwise.feedback.reward import Metric, RewardRule
from benchmarks.receipt_worlds import ARMS, DAY, DAYS, LARGE, SMALL, WAIT_S, WORLDS, Fortnight

MOST_FALSE = 0.05
"""Largest share of the fortnights of a world in which a sentence may be false."""

GRADED = 200
"""Answers that a judge without errors grades at the last look, rated or not."""

KINDS = DOLLARS, QUALITY, AUDIT, BEST, REASON = "dollars", "quality", "audit", "best arm", "reason"

_USD = r"\$([\d.,]*\d)"

_DOLLARS: tuple[tuple[str, Callable[..., tuple[float, float]]], ...] = (
    (rf"[Aa]t least {_USD} (?:less|saved)", lambda least: (least, inf)),
    (rf"[Aa]t least {_USD} more(?: spent)?", lambda least: (-inf, -least)),
    (rf"[Aa]t most {_USD} more", lambda most: (-most, inf)),
)
"""Sentences about dollars of 1,000 requests, each with the saving that it claims."""

_WORST = r"([+-][\d.]+) points at worst"

_END = r"([\d.]+ (?:higher|lower)|equal)"

_QUALITY = rf"\(range: {_END} to {_END}\)"

_BEST = r"of (?:rated )?answers of (large|small) is at least ([\d.]+) points of 100 higher"

_ABOUT = {
    DOLLARS: {"same": "same"},
    QUALITY: {
        "mean grade": "same",
        "silence counts as": "reward",
        "in time": "in time",
        "rated answers": "ratings",
        "mean reward": "reward",
    },
}
"""Words by which a sentence says what it is about, the most particular first."""

_FACTS = (
    rf"(estimate:( about)?|cost more than|counts up to|They cost) {_USD}|{_USD} more in all|"
    r"[\d.]+ points of 100 (higher|lower) than"
)
"""Dollars and points that are facts of the log, or estimates."""


class Claim(NamedTuple):
    """What a sentence claims.

    Attributes:
        kind: One of `KINDS`.
        low: Least dollars saved by 1,000 requests, or points of 100 gained.
        high: Most of these.
        of: What it is about: see `Fortnight.dollars` and `Fortnight.quality`; or an `Unsaid`.
        arm: The arm that is said to be the best one; empty: it is about what was served.
    """

    kind: str
    low: float = -inf
    high: float = inf
    of: str = "all"
    arm: str = ""


def read(text: str) -> Iterator[Claim]:
    """Yield what a sentence claims. Raises ValueError if it cannot be read."""
    claims, rest = list[Claim](), text
    dollars, quality = (
        next((of for words, of in _ABOUT[kind].items() if words in text), "all")
        for kind in (DOLLARS, QUALITY)
    )
    for pattern, find_ends in _DOLLARS:
        for found in re.finditer(pattern, text):
            ends = find_ends(*(float(part.replace(",", "")) for part in found.groups()))
            claims.append(Claim(DOLLARS, *ends, dollars))
        rest = re.sub(pattern, "", rest)
    claims += [Claim(QUALITY, *map(_read_end, ends), quality) for ends in re.findall(_QUALITY, text)]
    claims += [Claim(QUALITY, float(low), of=quality) for low in re.findall(_WORST, text)]
    claims += [Claim(BEST, float(least), of=quality, arm=arm) for arm, least in re.findall(_BEST, text)]
    rest = re.sub(f"{_QUALITY}|{_WORST}|{_BEST}|{_FACTS}", "", rest)
    if "$" in rest or "points" in rest:
        raise ValueError(f"cannot read {text!r}, of which is left {rest!r}")
    yield from claims


def _read_end(text: str) -> float:
    size, _, sign = text.partition(" ")
    return {"higher": 1.0, "lower": -1.0}[sign] * float(size) if sign else 0.0


def list_claims(world: Fortnight, before: float) -> Iterator[tuple[Claim, bool, str]]:
    """Yield what is claimed of the decisions settled before a time, whether it is true, and the sentence."""
    settlement = Settlement.from_time(before, sessions=True)
    sessions = Sessions(world.decisions, settlement)
    try:
        compared = [noninferiority.compare(sessions, arm) for arm in ARMS]
        counted = noninferiority.count(sessions, LARGE)
    except NothingComparableError:
        return
    silence = None if isnan(world.made.silence) else world.made.silence
    reward = describe_reward(RewardRule(metrics={"right": Metric()}, default=silence))
    rows = sessions.rows.seq[counted.row] - 1
    rated = rows[counted.inside & counted.late]

    @cache
    def compute_saved(of: str) -> float:
        """Return the dollars saved by 1,000 requests that count, with what belongs to each."""
        saved = replace(world.decisions, usd=world.dollars(of) - world.paid)
        return 1000.0 * float(Sessions(saved, settlement).usd[counted.row][counted.priced].mean())

    dollars, quality = state_dollars(compared[0]), state_quality(compared[0], reward)
    for one in (dollars, quality, state_best_arm(compared, reward)):
        claims = [(claim, text) for text in (one.headline, one.text, one.short) for claim in read(text)]
        if one.silence in [*Unsaid]:
            claims.append((Claim(REASON, of=one.silence), one.text))
        for claim, text in claims:
            yield claim, is_true(claim, world, rated, compute_saved), text


def audit(world: Fortnight) -> Iterator[tuple[Claim, bool, str]]:
    """Yield what is claimed of all answers of a fortnight once some are graded, like `list_claims`."""
    sessions = Sessions(world.decisions)
    try:
        sample = judged_answers.draw_answers(sessions, LARGE, GRADED, seed=0)
    except NothingComparableError:
        return
    rows, reward = sessions.rows.seq - 1, sessions.rows.reward[sample.row]
    grades = world.made.good[rows[sample.rows]].astype(np.float64)
    errors = noninferiority.share_error(sessions)
    found = judged_answers.compare_grades(sample, grades, reward, 0.5, errors)
    graded = list(zip(sample.rows.tolist(), grades.tolist(), strict=True))
    one = state_audited(
        AnswerAudit(
            judge="judge", asked=GRADED, seed=0, answers=len(rows), grades=graded, spent=0.0, quality=found
        ),
        LARGE,
    )
    for text in (one.headline, one.text, one.short):
        for claim in read(text):
            true = is_true(claim, world, rows[sample.row], lambda _: 0.0)
            yield claim._replace(kind=AUDIT), true, text


def is_true(claim: Claim, world: Fortnight, rows: Integers, compute_saved: Callable[[str], float]) -> bool:
    """Return whether a claim is true.

    Args:
        claim: The claim.
        world: The world.
        rows: Rows whose quality it is about.
        compute_saved: Returns the dollars that were saved, by what a sentence is about.
    """
    made = world.made
    if claim.kind == DOLLARS:
        return claim.low <= compute_saved(claim.of) <= claim.high
    if claim.kind in (QUALITY, BEST):
        served, large, small = world.quality(rows, claim.of)
        beside = {"": served - large, LARGE: large - small, SMALL: small - large}[claim.arm]
        return claim.low <= 100.0 * beside <= claim.high
    return {
        Unsaid.CACHE: made.caches,
        Unsaid.HISTORY: made.caches or made.rereads,
        Unsaid.RATED_APART: world.is_rated_apart(rows),
        Unsaid.ONE_USER: bool((made.user == -1).any()),
    }.get(Unsaid(claim.of), True)  # the others are facts of the log


# -- looks ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Looks:
    """What is claimed of one kind at the looks of some fortnights of a world.

    Attributes:
        stated: Looks with such a claim.
        false: Those with a false one.
        fortnights: Fortnights with a false one.
        example: A false sentence; empty: there is none.
    """

    stated: int = 0
    false: int = 0
    fortnights: int = 0
    example: str = ""

    def describe_false(self) -> str:
        """Return how many looks were false, and in how many fortnights."""
        return f"{self.false:,} in {self.fortnights:,}" if self.false else "0"


def look_at_world(
    make: Callable[[int, int], Fortnight], decisions: int, seeds: Iterable[int]
) -> dict[str, Looks]:
    """Look at fortnights of a world at the end of each day; return what is claimed, by kind."""
    found = {kind: Looks() for kind in KINDS}
    for seed in seeds:
        world, failed = make(decisions, seed), set[str]()
        for day in range(1, DAYS + 1):
            claims = list(list_claims(world, day * DAY - WAIT_S))
            claims += audit(world) if day == DAYS else []
            false = {claim.kind: text for claim, true, text in claims if not true}
            for kind, looks in found.items():
                looks.stated += any(claim.kind == kind for claim, *_ in claims)
                looks.false += kind in false
                looks.fortnights += kind in false and kind not in failed
                looks.example = looks.example or false.get(kind, "")
            failed |= false.keys()
    return found


def print_worlds(names: list[str], runs: int, decisions: int) -> int:
    """Print how often what is claimed is false, in each world; return 1 if that is too often."""
    print(f"{runs} fortnights of {decisions:,} decisions in each world, {DAYS} looks each\n")
    print("| world | " + " | ".join(f"{kind} | false" for kind in KINDS) + " |")
    print("| --- |" + " ---: | ---: |" * len(KINDS))
    too_often, stated, false, console = list[str](), 0, 0, Console(stderr=True)
    for name in names:
        seeds = track(range(runs), name, transient=True, console=console)
        found = look_at_world(WORLDS[name], decisions, seeds)
        cells = (f"{looks.stated:,} | {looks.describe_false()}" for looks in found.values())
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
        for kind, looks in found.items():
            stated, false = stated + looks.stated, false + looks.false
            if looks.fortnights > MOST_FALSE * runs:
                too_often.append(f"{name}, {kind}, in {looks.fortnights} fortnights: {looks.example}")
    print(f"\n{false:,} of {stated:,} sentences are false")
    print(*(f"\nToo often false: {one}" for one in too_often), sep="")
    return int(bool(too_often))
