"""The results of one candidate, as JSON."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from agent.reporting import counted
from feedback.ope import ESTIMATORS


class ReportSection(BaseModel):
    """A part of a report; unknown values are None, so that all of it is valid JSON."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Interval(ReportSection):
    """An estimate with its 95 % interval.

    Attributes:
        value: The estimate.
        low: Lower end.
        high: Upper end.
        kind: Which interval it is.
    """

    value: float
    low: float
    high: float
    kind: str

    @property
    def ends(self) -> str:
        """Both ends."""
        return f"[{self.low:+.3f}, {self.high:+.3f}]"

    def __str__(self) -> str:
        """Return it in short form.

        >>> str(Interval(value=0.25, low=-0.5, high=1.0, kind="normal"))
        '+0.250 [-0.500, +1.000]'
        """
        return f"{self.value:+.3f} {self.ends}"


class Estimated(ReportSection):
    """The result of one estimator for one candidate.

    Attributes:
        estimator: Name of the estimator.
        value: Mean reward of a decision; None where there is no estimate.
        difference: To the baseline, on the same rows; None for the baseline, and without an estimate.
        effective_n: Kish's effective sample size.
        parameter: The clip, threshold or shrinkage that was used; None where there is none, or no limit.
        note: Why there is no estimate, or another interval; empty for neither.
        covers: Whether its intervals hold the truth as often as they state; not where they leave out a bias.
    """

    estimator: str
    value: Interval | None = None
    difference: Interval | None = None
    effective_n: float = 0.0
    parameter: float | None = None
    note: str = ""
    covers: bool = Field(default_factory=lambda given: covers(given["estimator"]))

    def shown(self, interval: Interval | None) -> str:
        """Return one of its intervals as text, marked where it leaves out a bias.

        >>> Estimated(estimator="dm").shown(Interval(value=0.25, low=0.2, high=0.3, kind="normal"))
        '+0.250 [+0.200, +0.300] biased'
        """
        return "" if interval is None else f"{interval}{'' if self.covers else ' biased'}"


def covers(estimator: str) -> bool:
    """Return whether the intervals of an estimator hold the truth as often as they state.

    >>> covers("dr"), covers("dros")
    (True, False)
    """
    return estimator in ESTIMATORS and ESTIMATORS[estimator].covers


class ArmWeights(ReportSection):
    """The weights of the rows that drew one arm.

    Attributes:
        arm: Name of the arm.
        drawn: How often it was drawn, in [0, 1].
        wanted: How often the candidate would draw it, in [0, 1].
        overlap: Share of that which the log covers without weights above 1, in [0, 1].
        effective_n: Kish's effective sample size of these rows.
        largest: Largest weight of a row that drew it.
    """

    arm: str
    drawn: float
    wanted: float
    overlap: float
    effective_n: float
    largest: float


class Weights(ReportSection):
    """The importance weights of a candidate.

    Attributes:
        effective_n: Kish's effective sample size.
        largest: Largest weight of a row.
        mean: Their mean, which is 1 where all propensities are right, up to chance.
        mean_error: Standard error of that mean; None for a single question.
        edges: Upper edges of the bins of the histogram, the first of them 0: for rows without weight.
        counts: Rows in each bin.
        arms: Each arm that was eligible.
        warnings: What speaks against trusting the estimates; a sentence each.
    """

    effective_n: float
    largest: float
    mean: float
    mean_error: float | None
    edges: tuple[float, ...]
    counts: tuple[int, ...]
    arms: tuple[ArmWeights, ...]
    warnings: tuple[str, ...] = ()


class Stretch(ReportSection):
    """The value on consecutive rows.

    Attributes:
        since: When the first was decided, seconds since the epoch.
        until: When the last was.
        rows: How many there are.
        value: Self-normalised value of the candidate; None without weight there.
    """

    since: float
    until: float
    rows: int
    value: float | None


class CandidateResult(ReportSection):
    """The results of one candidate.

    Attributes:
        name: Name in the request.
        about: Description.
        rows: Decisions that it is evaluated on.
        excluded: Decisions that it is not evaluated on, by reason.
        notes: Remarks; a sentence each.
        estimates: One for each estimator.
        weights: None where all are 0.
        shares: How often it draws each arm; they sum to 1. Empty where no row is left.
        over_time: In the order of the log.
        verdict: Verdict of the gate; None where it was not requested.
    """

    name: str
    about: str
    rows: int
    excluded: dict[str, int] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()
    estimates: tuple[Estimated, ...] = ()
    weights: Weights | None = None
    shares: dict[str, float] = Field(default_factory=dict)
    over_time: tuple[Stretch, ...] = ()
    verdict: dict[str, Any] | None = None

    @property
    def remarks(self) -> list[str]:
        """Remarks on the candidate; a sentence each."""
        excluded = [f"Not judged by: {counted(self.excluded)}."] if self.excluded else []
        noted: dict[str, list[str]] = {}
        for one in self.estimates:
            if one.note and one.value is not None:
                noted.setdefault(one.note, []).append(one.estimator)
        noted_lines = [f"{', '.join(names)}: {note}." for note, names in noted.items()]
        warnings = self.weights.warnings if self.weights is not None else ()
        verdict = [f"The gate says {verdict_of(self.verdict)}"] if self.verdict is not None else []
        return [self.about, *self.notes, *excluded, *noted_lines, *warnings, *verdict]

    @property
    def headline(self) -> Estimated | None:
        """The estimate that represents it; None where there is none with a value.

        Estimates whose intervals cover come first, then those with intervals of the requested kind, then the
        rank of the estimator decides.
        """
        found = [one for one in self.estimates if one.value is not None]
        rank = {name: estimator.rank for name, estimator in ESTIMATORS.items()}
        return min(
            found,
            key=lambda one: (not one.covers, one.note != "", rank.get(one.estimator, len(rank))),
            default=None,
        )


def verdict_of(verdict: Mapping[str, Any]) -> str:
    """Return a verdict as a line.

    >>> verdict_of({"verdict": "hold", "reasons": ["Too few rows.", "An arm was never drawn."]})
    'hold. Too few rows. An arm was never drawn.'
    """
    return " ".join([f"{verdict['verdict']}.", *map(str, verdict["reasons"])])
