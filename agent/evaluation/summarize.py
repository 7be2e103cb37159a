"""Turn the evaluations of candidates into the results of a report."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from agent.evaluation.propensity_check import Recomputed
from agent.evaluation.results import ArmWeights, CandidateResult, Estimated, Interval, Stretch, Weights
from agent.evaluation.targets import Target
from agent.reporting import counted
from agent.routers import dataset
from feedback.dataset import Log
from feedback.ope import Diagnostics, EstimateWithInterval, GateSpec, evaluation, judge

STRETCHES, FEWEST = 12, 25
"""Number of stretches of a log at most, and rows in each at least."""

LEAST_EDGE = 0.125
"""Upper edge of the first bin of weights above 0; each further bin reaches twice as far."""


@dataclass(frozen=True, slots=True)
class GateInputs:
    """The inputs of verdicts and warnings.

    Attributes:
        gate: The conditions of a promotion, which are thresholds of warnings too.
        reward_range: Smallest and largest possible reward.
        checked: Result of the check of propensities; None where no verdict is requested.
        settled: When the first decision was made that still waits for feedback, seconds since the epoch.
    """

    gate: GateSpec
    reward_range: tuple[float, float]
    checked: Recomputed | None
    settled: float = math.inf

    def verdict(self, target: Target, one: evaluation.Evaluation | None) -> dict[str, Any] | None:
        """Return the verdict on a candidate as JSON; None where none is requested."""
        if self.checked is None:
            return None
        reason = None
        if target.unsupported:
            reason = (
                f"It brings {', '.join(target.unsupported)}, which no decision of the log could have drawn: "
                "nothing is known of what it earns. Make it live first (`armwise apply`), or use --force."
            )
        elif one is None:
            reason = f"No decision is left to judge it by: {counted(target.excluded)}."
        if one is None or reason is not None:
            return {"verdict": "hold", "promote": False, "reasons": [reason], "figures": None, "trail": []}
        known = {"checked": self.checked.checked, "mismatched": self.checked.mismatched}
        p = target.p[target.kept]
        found = judge(self.gate, one.log, p, reward_range=self.reward_range, settled=self.settled, **known)
        document: dict[str, Any] = orjson.loads(orjson.dumps(found.document()))
        return document


def candidate_results(
    found: Sequence[Target], evaluations: Mapping[str, evaluation.Evaluation], inputs: GateInputs
) -> tuple[CandidateResult, ...]:
    """Return the results of each candidate.

    Args:
        found: The distributions of the candidates, the baseline first.
        evaluations: Evaluations of the candidates that have rows.
        inputs: Inputs of verdicts and warnings.
    """
    edges = edges_of([one.weight for one in evaluations.values()])
    return tuple(
        _candidate_result(target, evaluations.get(target.name), inputs, edges, served=target is found[0])
        for target in found
    )


def _candidate_result(
    target: Target,
    one: evaluation.Evaluation | None,
    inputs: GateInputs,
    edges: tuple[float, ...],
    *,
    served: bool,
) -> CandidateResult:
    result = CandidateResult(
        name=target.name,
        about=target.about,
        rows=0 if one is None else len(one.log),
        excluded=dict(target.excluded),
        notes=target.notes,
        verdict=None if served else inputs.verdict(target, one),
    )
    if one is None:
        return result
    drawn = bool(one.weight.any())
    return result.model_copy(
        update={
            "estimates": tuple(map(_estimated, one.estimates)),
            "weights": weights_of(one, edges, inputs.gate, served=served) if drawn else None,
            "shares": {each.arm: each.wanted for each in one.diagnostics.overlap},
            "over_time": over_time(one.log, one.weight) if drawn else (),
        }
    )


def _estimated(one: evaluation.Estimated) -> Estimated:
    limited = one.parameter is not None and math.isfinite(one.parameter)
    return Estimated(
        estimator=one.estimator,
        value=_interval(one.value),
        difference=_interval(one.difference),
        effective_n=one.effective_n,
        parameter=one.parameter if limited else None,
        note=one.note,
    )


def _interval(found: EstimateWithInterval | None) -> Interval | None:
    return (
        None
        if found is None
        else Interval(value=found.value, low=found.low, high=found.high, kind=found.kind)
    )


def edges_of(weights: Sequence[dataset.Floats]) -> tuple[float, ...]:
    """Return upper edges of bins for weights: 0, then powers of 2 up to the largest weight.

    >>> edges_of([np.array([0.0, 1.5])])
    (0.0, 0.125, 0.25, 0.5, 1.0, 2.0)
    """
    largest = max((float(weight.max()) for weight in weights), default=0.0)
    last = max(0, math.ceil(math.log2(largest / LEAST_EDGE))) if largest > 0.0 else 0
    return (0.0, *(LEAST_EDGE * 2.0**power for power in range(last + 1)))


def weights_of(
    one: evaluation.Evaluation, edges: tuple[float, ...], gate: GateSpec, *, served: bool
) -> Weights:
    """Return the weights of a candidate.

    Args:
        one: The evaluation of the candidate.
        edges: Upper edges of the bins, the last at least as high as every weight.
        gate: Thresholds of the warnings.
        served: Whether it is the baseline, which has no warnings.
    """
    weight, seen = one.weight, one.diagnostics
    place = np.searchsorted(edges, weight)
    return Weights(
        effective_n=seen.effective_n,
        largest=seen.largest_weight,
        mean=seen.mean_weight,
        mean_error=seen.mean_weight_error,
        edges=edges,
        counts=tuple(np.bincount(place, minlength=len(edges)).tolist()),
        arms=tuple(
            ArmWeights(
                arm=one.arm,
                drawn=one.logged,
                wanted=one.wanted,
                overlap=one.covered,
                effective_n=one.effective_n,
                largest=one.largest_weight,
            )
            for one in seen.overlap
        ),
        warnings=() if served else tuple(_warnings(weight, seen, gate)),
    )


def _warnings(weight: dataset.Floats, seen: Diagnostics, gate: GateSpec) -> list[str]:
    """Return warnings about the weights, by the thresholds of the gate."""
    warnings = []
    if seen.effective_n < gate.least_effective_n:
        warnings.append(f"The {seen.n:,} decisions are worth {seen.effective_n:,.0f} of its own: too few.")
    largest = float(weight.max() / weight.sum())
    if largest > gate.largest_share:
        warnings.append(f"A single decision has {largest:.0%} of all weight.")
    if abs(seen.mean_weight_z) > gate.largest_weight_error:
        warnings.append(
            f"The mean weight is {seen.mean_weight:.3f}, which is {abs(seen.mean_weight_z):.1f} standard "
            "errors from 1: propensities on record may be wrong."
        )
    return warnings


def over_time(log: Log, weight: dataset.Floats) -> tuple[Stretch, ...]:
    """Return the value along the log, in stretches of equally many rows.

    Args:
        log: The rows.
        weight: Weight of each row for the candidate, shape (n,).
    """
    pieces = np.array_split(np.arange(len(log)), max(1, min(STRETCHES, len(log) // FEWEST)))
    return tuple(
        Stretch(
            since=float(log.at[rows].min()),
            until=float(log.at[rows].max()),
            rows=len(rows),
            value=_mean(weight[rows], log.reward[rows]),
        )
        for rows in pieces
    )


def _mean(weight: dataset.Floats, reward: dataset.Floats) -> float | None:
    """Return the weighted mean; None where nothing has weight."""
    return float(weight @ reward / weight.sum()) if weight.any() else None
