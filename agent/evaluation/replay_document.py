"""The document of a replay, and how estimates become entries of it.

The document is plain JSON: `armwise replay -o replay.json` writes it, and
`GET /v1/evaluations/{number}` returns it as `result`. Unknown numbers are null. `replay_page` makes a table
and a page of it.
"""

from collections.abc import Iterator
from typing import Any, TypedDict

from armwise.agent.evaluation.recompute import RecomputedCheck
from armwise.feedback.decisions import format_time
from armwise.feedback.logged_draws import NO_REWARD, LoggedDraws
from armwise.feedback.ope import ESTIMATORS, EstimateWithInterval, Evaluation, gate
from armwise.feedback.reward import RewardRule
from armwise.feedback.training_log import Settled


class Interval(TypedDict):
    """An estimate with its 95 % interval, and the kind of the interval."""

    value: float
    low: float
    high: float
    kind: str


class Estimated(TypedDict):
    """The result of one estimator for one candidate.

    Attributes:
        estimator: Name of the estimator.
        value: Mean reward of a decision; None: it cannot be estimated.
        difference: Difference to the baseline on the same rows; None for the baseline itself.
        effective_n: Kish's effective sample size.
        note: Why the estimate is missing, or its interval is of another kind.
        covers: Whether its intervals hold the truth as often as they state; False if they omit a bias.
    """

    estimator: str
    value: Interval | None
    difference: Interval | None
    effective_n: float
    note: str
    covers: bool


class ArmWeights(TypedDict):
    """The weights of the rows that drew one arm.

    Attributes:
        arm: Name of the arm.
        drawn: Share of rows that drew it, in [0, 1].
        wanted: Share of rows for which the candidate would draw it, in [0, 1].
        overlap: Part of `wanted` that the log covers with weights of at most 1, in [0, 1].
        effective_n: Kish's effective sample size of these rows.
        largest: Largest weight of a row that drew it.
    """

    arm: str
    drawn: float
    wanted: float
    overlap: float
    effective_n: float
    largest: float


class Weights(TypedDict):
    """The importance weights of a candidate.

    Attributes:
        effective_n: Kish's effective sample size.
        largest: Largest weight of a row.
        mean: Mean weight; about 1 if all propensities are right.
        mean_error: Standard error of the mean; None for a single question.
        arms: The weights of each arm that was eligible.
        warnings: Reasons against trusting the estimates; a sentence each.
    """

    effective_n: float
    largest: float
    mean: float
    mean_error: float | None
    arms: list[ArmWeights]
    warnings: list[str]


class CandidateResult(TypedDict):
    """The results of one candidate.

    Attributes:
        name: Name in the request.
        about: Description.
        rows: Number of decisions that it is evaluated on.
        excluded: Number of decisions that are left out, by reason.
        notes: Remarks; a sentence each.
        estimates: The result of each estimator.
        weights: The importance weights; None if all are 0.
        shares: How often it draws each arm, summing to 1; empty if no row is left.
        verdict: Verdict of the gate, if it was requested.
    """

    name: str
    about: str
    rows: int
    excluded: dict[str, int]
    notes: list[str]
    estimates: list[Estimated]
    weights: Weights | None
    shares: dict[str, float]
    verdict: dict[str, Any] | None


class ReplayDocument(TypedDict):
    """The results of candidates, compared with the baseline.

    Attributes:
        request: The request.
        source: The log or the export that was read.
        made_at: When the document was made, seconds since the epoch.
        armwise: Version of the program.
        reward: The reward rule.
        floor: Exploration floor of the candidates that a service would serve.
        rows: Number of selected, usable and settled decisions.
        observations: Number of groups of decisions that count as one observation: those with the same
            question, or what the `cluster` of the request names.
        first_at: Time of the first of these decisions, seconds since the epoch.
        last_at: Time of the last one.
        positions: Positions of the first and last row in the training log.
        digest: Digest of the rows' positions, draws, propensities and rewards.
        excluded: Number of decisions that were left out, by reason, most frequent first.
        earned: Mean reward of the decisions.
        drawn: How often each arm was drawn, summing to 1.
        arm_colours: Number of each arm's colour, as on the pages of the console.
        candidates: The results in the order of the request, the baseline first.
        assumptions: Assumptions of the estimates; a sentence each.
    """

    request: dict[str, Any]
    source: str
    made_at: float
    armwise: str
    reward: dict[str, Any]
    floor: float
    rows: int
    observations: int
    first_at: float
    last_at: float
    positions: list[int]
    digest: str
    excluded: dict[str, int]
    earned: float
    drawn: dict[str, float]
    arm_colours: dict[str, int]
    candidates: list[CandidateResult]
    assumptions: list[str]


DIRECT_ALONE = "by the direct model only, because the log has no propensities"
"""Note on every figure of a log without propensities."""


# -- entries -----------------------------------------------------------------------------------------


def add_estimates(result: CandidateResult, found: Evaluation, *, served: bool) -> None:
    """Add the estimates of a candidate to its results; those of what was served raise no warnings."""
    doubt = "propensities were estimated, not recorded" if found.log.estimated else ""
    doubt = doubt if found.log.has_propensities else DIRECT_ALONE
    result["rows"] = len(found.log)
    result["estimates"] = [
        Estimated(
            estimator=each.estimator,
            value=_describe(each.value),
            difference=_describe(each.difference),
            effective_n=each.effective_n,
            note=each.note if each.value is None else "; ".join(filter(None, (each.note, doubt))),
            covers=ESTIMATORS[each.estimator].covers,
        )
        for each in found.estimates
    ]
    result["shares"] = {each.arm: each.target for each in found.diagnostics.overlap}
    if found.weight.any():
        result["weights"] = describe_weights(found, served=served)


def _describe(found: EstimateWithInterval | None) -> Interval | None:
    if found is None:
        return None
    return Interval(value=found.value, low=found.low, high=found.high, kind=found.kind)


def describe_weights(found: Evaluation, *, served: bool) -> Weights:
    """Return the weights of a candidate; those of what was served raise no warnings."""
    diagnostics = found.diagnostics
    return Weights(
        effective_n=diagnostics.effective_n,
        largest=diagnostics.largest_weight,
        mean=diagnostics.mean_weight,
        mean_error=diagnostics.mean_weight_error,
        arms=[
            {
                "arm": overlap.arm,
                "drawn": overlap.logged,
                "wanted": overlap.target,
                "overlap": overlap.covered,
                "effective_n": overlap.effective_n,
                "largest": overlap.largest_weight,
            }
            for overlap in diagnostics.overlap
        ],
        warnings=[] if served else list(_warnings(found)),
    )


def _warnings(found: Evaluation) -> Iterator[str]:
    """Yield warnings about weights beyond the thresholds of the gate."""
    diagnostics = found.diagnostics
    if diagnostics.effective_n < gate.LEAST_EFFECTIVE_N:
        yield (
            f"The {diagnostics.n:,} decisions carry as much information as {diagnostics.effective_n:,.0f} "
            "decisions of the candidate: too few."
        )
    largest = float(found.weight.max() / found.weight.sum())
    if largest > gate.LARGEST_SHARE:
        yield f"A single decision has {largest:.0%} of all weight."
    if abs(diagnostics.mean_weight_z) > gate.LARGEST_WEIGHT_ERROR:
        yield (
            f"The mean weight is {diagnostics.mean_weight:.3f}, which is "
            f"{abs(diagnostics.mean_weight_z):.1f} standard errors from 1: "
            "logged propensities may be wrong."
        )


# -- assumptions -------------------------------------------------------------------------------------


RATED = (
    "The figures are about decisions with feedback{}. They hold for all decisions only if feedback is as "
    "likely whichever arm answered, and however well."
)

DIRECT = (
    "The log has no propensities, so every figure comes from the direct model, dm, and is right only if the "
    "model is. It assumes that rewards depend on what is on record of the question and on the arm, and that "
    "nothing unobserved chose the arm. Its intervals cover the spread of the predictions, not their error."
)

ESTIMATES = (
    "Propensities of {:,} of {:,} decisions were estimated from frequencies, not recorded: every figure "
    "assumes that the counted context was all that the logging policy saw, and that it never changed. "
    "Intervals leave the error of the estimate out."
)

ALL_ELIGIBLE = (
    "For {:,} of {:,} decisions, only the probability of the drawn arm is on record. If it is below 1, every "
    "arm that was eligible counts as one that could be drawn."
)


def list_assumptions(
    log: LoggedDraws, checked: RecomputedCheck | None, settled: Settled, rule: RewardRule
) -> Iterator[str]:
    """Yield what the estimates assume and leave out, a sentence each.

    Args:
        log: The rows.
        checked: What was recomputed for the gate.
        settled: The settled part of the entire log.
        rule: The rule of the rewards.
    """
    if rule.default is None:
        n = log.excluded.get(NO_REWARD, 0)
        yield RATED.format(f": {n:,} of {n + len(log):,} have none and are left out" if n else "")
    if not log.has_propensities:
        yield DIRECT
    if log.estimated:
        yield ESTIMATES.format(log.estimated, len(log))
    if n := int((~log.whole).sum()):
        yield ALL_ELIGIBLE.format(n, len(log))
    if checked is not None:
        again = f"{checked.checked:,} distributions were recomputed, and {checked.mismatched:,} differed"
        yield f"{again}; {checked.lost:,} could not be recomputed." if checked.lost else f"{again}."
    if not settled.is_whole:
        which = f"{settled.n_open:,} decisions" if settled.n_open else "Decisions"
        yield (
            f"{which} since {format_time(settled.before)} may still get feedback. They count once "
            f"`reward.wait_time`, {rule.wait_time}, has passed while the service runs."
        )
