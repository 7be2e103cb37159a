"""A period of a file: an export, or the converted log of another system, reported as the log of a service.

A file has decisions with what came of them, and nothing else: no promotions, alarms or verdicts. The least
propensity on record stands for the exploration floor, which bounds the weights of a log.
"""

from collections import deque
from collections.abc import Iterator
from math import inf
from pathlib import Path

from armwise.agent.console.period import KINDS_OF, Kinds, NothingServedError, Period, Turns, period_of
from armwise.arms.base import Progress
from armwise.feedback.clock import utc
from armwise.feedback.events import FOREIGN, LABELS, Example, Mode
from armwise.feedback.jsonl import read_export, read_headers
from armwise.feedback.reward import RewardRule
from armwise.feedback.sources import ExportSource
from armwise.feedback.training_log import rollups, served_turns

FLOOR = 0.05
"""Least propensity where no decision of several arms has one on record."""


def span_of(path: Path) -> tuple[float, float]:
    """Return when the first and the last decision of a file were made, labels left out.

    Raises:
        ExchangeError: It cannot be read.
        NothingServedError: It has no decision.
    """
    first, last = inf, -inf
    for example in read_export(path):
        if example.decision.policy != LABELS:
            at = example.decision.decided_at
            first, last = min(first, at), max(last, at)
    if first > last:
        raise NothingServedError(f"{path}: it has no decision")
    return first, last


def read_file_period(path: Path, since: float, until: float, on_progress: Progress) -> Period:
    """Read a period from a file.

    Args:
        path: The file.
        since: Begin, seconds since the epoch.
        until: End; a decision at this time is not part of it.
        on_progress: Called with the progress.

    Raises:
        ExchangeError: It cannot be read.
        NothingServedError: No decision was made in the period.
    """
    rule = next(iter(read_headers(path))).reward
    rows = _Rows(path, rule, since, until)
    turns = Turns(iter(rows), on_progress)
    if not turns.n:
        first, last = span_of(path)
        raise NothingServedError(
            f"no decision was made from {utc(since)} to {utc(until)}: {path} has some from {utc(first)} to "
            f"{utc(last)}"
        )
    notes = ["A file has no promotions, alarms or verdicts: they are in the log of a service."]
    if rows.ours:
        notes.append(
            "An export has the decisions that are learned from; without a default reward, those with "
            "feedback."
        )
    names = tuple(turns.names) if turns.n > turns.without else ()
    return period_of(
        turns,
        names,
        min(rows.least, 1.0 / max(2, len(turns.names))),
        rule.reward_range,
        (since, until),
        Kinds.of(rows.draws),
        source=str(path),
        notes=tuple(notes),
    )


class _Rows:
    """The decisions of a file in a period, as turns.

    Args:
        path: The file.
        rule: The rule of their rewards.
        since: Begin.
        until: End.

    Attributes:
        least: Least propensity on record of an arm that could be drawn.
        draws: The newest explored decisions.
        ours: Whether any was drawn by a policy of a service.
    """

    def __init__(self, path: Path, rule: RewardRule, since: float, until: float) -> None:
        self._path, self._rule, self._since, self._until = path, rule, since, until
        self._settled = ExportSource(path).settled.before
        self.least, self.ours = FLOOR, False
        self.draws: deque[rollups.NewestDraw] = deque(maxlen=KINDS_OF)

    def __iter__(self) -> Iterator[served_turns.ServedTurn]:
        least = inf
        for example in read_export(self._path):
            d = example.decision
            if d.policy == LABELS or not self._since <= d.decided_at < self._until:
                continue
            self.ours = self.ours or d.policy not in FOREIGN
            if d.mode is Mode.EXPLORE:
                self.draws.append(rollups.NewestDraw(example.seq, d.drawn, d.context.features))
                if len(d.arms) > 1 and (some := [p for p in d.probabilities if p > 0.0]):
                    least = min(least, *some)
            yield self._turn(example)
        self.least = FLOOR if least == inf else least

    def _turn(self, example: Example) -> served_turns.ServedTurn:
        d = example.decision
        arms = d.arms
        if len(d.probabilities) == len(arms):
            arms = tuple(arm for arm, p in zip(arms, d.probabilities, strict=True) if p > 0.0)
        final = d.decided_at < self._settled
        return served_turns.ServedTurn(
            example.seq,
            d.decided_at,
            arms,
            d.drawn,
            d.propensity,
            d.mode is Mode.EXPLORE,
            example.failed,
            example.cost,
            self._rule.reward_of(example) if final else None,
            settled=final,
        )
