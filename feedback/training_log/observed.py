"""Observations that a recipe learns: second answers that a judge compared, and grades of a judge.

A recipe that opts in learns an observation as a label. When it does follows from the log alone: right after
the first example that was joined once the observation was written, or after the example of its own decision
if that comes later. The training log, the rewards and the propensities stay as they are.

    second answer   the feedback on the user's answer, moved towards the best or the worst value by the
                    preference of the judge, so that a question that is hard for all arms favours none
    grade           a decision that lacks feedback so far, with the value that its grade predicts: by
                    regression on the audits, the decisions with a grade and feedback, once these are
                    enough and agree

Source: the regression is the optimal weight of prediction-powered inference (Angelopoulos et al. 2023,
arXiv:2311.01453), applied to one decision.
"""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import sqlalchemy as sa
from orjson import loads
from pydantic import BaseModel, ConfigDict, Field, model_validator

from armwise.feedback.events import LABELS, Cost, Decision, Example, Observation, ObservationSource
from armwise.feedback.log import Store
from armwise.feedback.log import rows as log_rows
from armwise.feedback.log import tables as t
from armwise.feedback.reward import RewardRule
from armwise.feedback.training_log.router_contexts import read_contexts
from armwise.number import Number

SOURCE_EPISODE = "beside/"
"""Prefix of the episodes of observations that are learned; such decisions exist in memory only."""

CHUNK = 500
"""Examples whose observations are read at once."""

LOOKED_UP = 5000
"""Decisions that are read by one statement."""

WINDOW = 1000
"""Newest audits that grades are calibrated by."""


AUDITS = 50
"""Least number of decisions with a grade and feedback before grades are learned."""

AGREEMENT = 0.3
"""Least correlation of grades and feedback at which grades are learned."""


class Also(BaseModel):
    """Which observations the policy learns from, in addition to feedback."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    shadow: Number | None = Field(
        default=None,
        gt=0,
        le=1,
        description=(
            "How much the first answer's value changes if the second answer is preferred, as a share of "
            "each metric's range."
        ),
    )
    judge: bool = Field(
        default=False,
        description="Whether the policy learns from a judge's grade if a decision has no feedback.",
    )

    @model_validator(mode="after")
    def _useful(self) -> "Also":
        if self.shadow is None and not self.judge:
            raise ValueError("`also` needs `shadow` or `judge`: set one of them, or remove `also`")
        return self


@dataclass(frozen=True, slots=True)
class Calibration:
    """How well a judge's grades predict feedback.

    Attributes:
        audits: Number of decisions with a grade and feedback.
        agreement: Correlation of both; 0 if either is constant.
        slope: Change of the value for a unit of the grade, by least squares.
        grade: Mean grade.
        value: Mean quality.
    """

    audits: int
    agreement: float
    slope: float
    grade: float
    value: float

    @classmethod
    def fit(cls, pairs: Sequence[tuple[float, float]]) -> "Calibration":
        """Calibrate by pairs of a grade and a value.

        >>> found = Calibration.fit([(0.0, 0.5), (1.0, 1.0)])
        >>> found.agreement, found.slope, found.predict(0.5)
        (1.0, 0.5, 0.75)
        """
        if not pairs:
            return cls(0, 0.0, 0.0, 0.0, 0.0)
        grades, values = np.array(pairs).T
        grade, value = float(grades.mean()), float(values.mean())
        dg, dv = grades - grade, values - value
        if not (np.ptp(grades) and np.ptp(values)):
            return cls(len(pairs), 0.0, 0.0, grade, value)
        both, spread = float(dg @ dv), float(np.sqrt((dg @ dg) * (dv @ dv)))
        return cls(len(pairs), min(1.0, max(-1.0, both / spread)), both / float(dg @ dg), grade, value)

    def predict(self, grade: float) -> float:
        """Return the value that a grade predicts, in [0, 1]."""
        return min(1.0, max(0.0, self.value + self.slope * (grade - self.grade)))

    def objection(self) -> str:
        """Return why grades must not be learned yet; empty if they may be.

        >>> Calibration(12, 0.9, 1.0, 0.5, 0.5).objection()
        '12 decisions have a grade and feedback, and 50 are needed'
        """
        if self.audits < AUDITS:
            return f"{self.audits} decisions have a grade and feedback, and {AUDITS} are needed"
        if self.agreement < AGREEMENT:
            return (
                f"the grades correlate with feedback by {self.agreement:.2f}, "
                f"and {AGREEMENT:g} or more is needed"
            )
        return ""


def move_metrics(rule: RewardRule, metrics: Mapping[str, float], share: float) -> dict[str, float]:
    """Return metrics moved by a share of their ranges, towards better if positive, and clipped to them.

    >>> from armwise.feedback.reward import Metric
    >>> rule = RewardRule(metrics={"right": Metric(), "errors": Metric(range=(0, 10), optimize="min")})
    >>> move_metrics(rule, {"right": 0.75, "errors": 4.0}, 0.5)
    {'right': 1.0, 'errors': 0.0}
    """
    declared = ((name, value) for name, value in metrics.items() if name in rule.metrics)
    return {name: rule.metrics[name].move(value, share) for name, value in declared}


def find_source(decision: Decision) -> ObservationSource | None:
    """Return the source of the observation behind an example; None: it is of the training log."""
    episode = decision.episode_id
    if decision.policy != LABELS or episode is None or not episode.startswith(SOURCE_EPISODE):
        return None
    return ObservationSource(episode.removeprefix(SOURCE_EPISODE))


@dataclass(frozen=True, slots=True)
class _Observed:
    """An observation in the log, with the example of its decision.

    Attributes:
        seq: Position in the log.
        what: The observation.
        example_seq: Position of the example of its decision, once there is one.
        metrics: The metrics of that example; empty without feedback.
    """

    seq: int
    what: Observation
    example_seq: int | None
    metrics: Mapping[str, float]


class WithObservations:
    """Yields examples and, after each, the observations at its position.

    Args:
        store: The log.
        rule: How the log is joined.
        also: Observations that are learned.
        first: Position where the recipe starts; examples up to it are ignored.
        after: Position up to which examples and their observations have been learned; at least `first`.
        router: Digest of the recipe's router, whose scores the contexts get.
    """

    def __init__(
        self,
        store: Store,
        rule: RewardRule,
        also: Also,
        first: int,
        after: int,
        router: str | None = None,
    ) -> None:
        self._store, self._rule, self._also, self._first = store, rule, also, first
        self._router = router
        x = t.examples.c
        with store.reading() as connection:
            ends = sa.select(x.joined_by).where(x.join == rule.join, x.seq == after)
            self._by = int(connection.scalar(ends) or 0)  # observations up to here were considered
            audits = list_audited(connection, rule, first, after, self._by, WINDOW) if also.judge else []
        self._audits = [(audit.example_seq or 0, *_pair(rule, audit)) for audit in reversed(audits)]

    def follow(self, examples: Iterable[Example]) -> Iterator[Example]:
        """Yield the next examples of the training log, each followed by its observations."""
        rest = iter(examples)
        while chunk := list(islice(rest, CHUNK)):
            beside, decisions, costs = self._read(chunk)
            for example in chunk:
                yield example
                for observed in beside[example.seq]:
                    name = observed.what.decision_id
                    if observed.what.source is ObservationSource.SHADOW:
                        yield self._second(example, decisions[name], observed)
                    elif observed.example_seq is None:
                        yield from self._predict_missing(example, decisions[name], costs[name], observed.what)
                    else:
                        insort(self._audits, (observed.example_seq, *_pair(self._rule, observed)))
                        del self._audits[:-WINDOW]

    def _read(
        self, chunk: Sequence[Example]
    ) -> tuple[Mapping[int, list[_Observed]], Mapping[str, Decision], Mapping[str, Cost]]:
        """Return the observations at the positions of consecutive examples, their decisions and costs."""
        o, last = t.observations.c, chunk[-1]
        ends = [example.by for example in chunk]
        of_chunk = o.decision_id.in_([example.decision.id for example in chunk])
        by_example: defaultdict[int, list[_Observed]] = defaultdict(list)
        with self._store.reading() as connection:
            new = _list_observed(connection, self._rule, o.seq > self._by, o.seq <= last.by)
            for observed in [*_list_observed(connection, self._rule, of_chunk, o.seq <= self._by), *new]:
                at, of = chunk[bisect_left(ends, observed.seq)].seq, observed.example_seq
                if (
                    of is not None
                    and self._first < of <= last.seq
                    and observed.metrics
                    and self._counts(observed)
                ):
                    by_example[max(at, of)].append(observed)
            for observed in new if self._also.judge else ():
                at, of = chunk[bisect_left(ends, observed.seq)].seq, observed.example_seq
                if observed.what.source is ObservationSource.JUDGE and (of is None or of > at):
                    by_example[at].append(replace(observed, example_seq=None))
            learned = [observed.what for some in by_example.values() for observed in some]
            decisions, costs = dict[str, Decision](), dict[str, Cost]()
            ids = sorted({observed.decision_id for observed in learned})
            for some in (ids[n : n + LOOKED_UP] for n in range(0, len(ids), LOOKED_UP)):
                decisions |= log_rows.load_decisions(connection, some)
                costs |= {name: e.cost for name, e in log_rows.load_executions(connection, some).items()}
        contexts = read_contexts(self._store, [*decisions.values()], self._router, stored_since=False)
        for name, context in zip(decisions, contexts, strict=True):
            decisions[name] = replace(decisions[name], context=context)
        self._by = last.by
        for some_observed in by_example.values():
            some_observed.sort(key=lambda observed: observed.seq)
        return by_example, decisions, costs

    def _counts(self, observed: _Observed) -> bool:
        return (
            self._also.judge
            if observed.what.source is ObservationSource.JUDGE
            else self._also.shadow is not None
        )

    def _second(self, example: Example, decision: Decision, observed: _Observed) -> Example:
        """Return the second answer to a question as an example."""
        what = observed.what
        assert what.value is not None
        assert self._also.shadow is not None
        others = tuple(arm for arm in decision.arms if arm != decision.drawn)
        share = (1.0 / len(others),) * len(others)
        relabelled = replace(decision, arms=others, probabilities=share, drawn=what.arm)
        metrics = move_metrics(self._rule, observed.metrics, self._also.shadow * what.value)
        return Example(example.seq, _label(relabelled, what), what.cost, metrics, by=example.by)

    def _predict_missing(
        self, example: Example, decision: Decision, cost: Cost, what: Observation
    ) -> Iterator[Example]:
        """Yield a decision that lacks feedback with the value its grade predicts, if calibration allows."""
        calibration = Calibration.fit([(grade, value) for _, grade, value in self._audits])
        if what.value is not None and not calibration.objection():
            place = calibration.predict(what.value)
            metrics = {name: metric.value_at(place) for name, metric in self._rule.metrics.items()}
            yield Example(example.seq, _label(decision, what), cost, metrics, by=example.by)


@dataclass(frozen=True, slots=True)
class Graded:
    """A decision that a judge graded.

    Attributes:
        arm: Arm that answered.
        grade: The grade, in [0, 1].
        value: Quality by its feedback, in [0, 1]; None: it has no feedback.
    """

    arm: str
    grade: float
    value: float | None


def list_graded(store: Store, rule: RewardRule, limit: int) -> list[Graded]:
    """Return the newest decisions that a judge graded, newest first. Raises LogUnavailableError."""
    o = t.observations.c
    with store.reading() as connection:
        grades = _list_observed(
            connection, rule, o.source == ObservationSource.JUDGE, order=o.seq.desc(), limit=limit
        )
    return [
        Graded(
            observed.what.arm,
            observed.what.value,
            rule.quality(observed.metrics) if observed.metrics else None,
        )
        for observed in grades
        if observed.what.value is not None
    ]


def list_audited(
    connection: sa.Connection, rule: RewardRule, first: int, after: int, upto: int, limit: int
) -> list[_Observed]:
    """Return the newest decisions with a grade and feedback, newest first.

    Args:
        connection: A snapshot.
        rule: How the log is joined.
        first: Position of the example before the first that counts.
        after: Position of the last example that counts.
        upto: Position of the log up to which grades count.
        limit: Largest length of the list.
    """
    o, x = t.observations.c, t.examples.c
    where = (
        o.source == ObservationSource.JUDGE,
        x.seq > first,
        x.seq <= after,
        o.seq <= upto,
        sa.cast(x.metrics, sa.Text) != "{}",
    )
    return _list_observed(connection, rule, *where, order=x.seq.desc(), limit=limit)


def _list_observed(
    connection: sa.Connection,
    rule: RewardRule,
    *where: sa.ColumnElement[bool],
    order: sa.ColumnElement[int] | None = None,
    limit: int | None = None,
) -> list[_Observed]:
    """Return the observations that have a value, each with the example of its decision."""
    o, x = t.observations.c, t.examples.c
    query = (
        sa.select(t.observations, sa.null().label("texts"), x.seq.label("example_seq"))
        .add_columns(sa.cast(x.metrics, sa.Text).label("metrics"))
        .outerjoin(t.examples, (x.decision_id == o.decision_id) & (x.join == rule.join))
        .where(o.value.is_not(None), o.source.in_([*ObservationSource]), *where)
        .order_by(o.seq if order is None else order)
        .limit(limit)
    )
    return [
        _Observed(row.seq, log_rows.read_observation(row), row.example_seq, loads(row.metrics or "{}"))
        for row in connection.execute(query)
    ]


def _pair(rule: RewardRule, audit: _Observed) -> tuple[float, float]:
    """Return the grade and the quality of an audit."""
    quality = rule.quality(audit.metrics)
    assert audit.what.value is not None
    assert quality is not None
    return audit.what.value, quality


def _label(decision: Decision, what: Observation) -> Decision:
    """Return a decision as the label of an observation."""
    return replace(
        decision,
        id=f"{decision.id}/{what.source}/{what.arm}",
        policy=LABELS,
        version=0,
        episode_id=SOURCE_EPISODE + what.source,
        steps={name: record for name, record in decision.steps.items() if name in ("floor", "cache")},
    )
