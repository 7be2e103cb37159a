"""What can be known of a log's traffic, and what cannot, in plain words."""

from dataclasses import dataclass

import numpy as np

from armwise.agent.proof.traffic import LoggedTraffic
from armwise.feedback.events import ESTIMATED
from armwise.feedback.ope import noninferiority
from armwise.feedback.ope.noninferiority import ENOUGH, Sessions, Settlement

NAMED = 8
"""Most arms that a remark names."""


@dataclass(frozen=True, slots=True)
class Remark:
    """Something that can be known of a log, or cannot.

    Attributes:
        known: Whether it can.
        text: One sentence or two; of what cannot be known also what would help.
        fatal: Whether nothing at all can be compared.
    """

    known: bool
    text: str
    fatal: bool = False


def assess(traffic: LoggedTraffic, settlement: Settlement, sessions: Sessions) -> list[Remark]:
    """Return what can be known of a log and what cannot.

    Args:
        traffic: The log.
        settlement: The final part of it.
        sessions: The explored decisions of that part.
    """
    remarks = [_counts(traffic, settlement, sessions)]
    if traffic.doubt:
        return [*remarks, Remark(False, traffic.doubt, fatal=True)]
    if not len(sessions.rows):
        return remarks
    drawn = _drawings(sessions)
    if any(remark.fatal for remark in drawn):
        return [*remarks, *drawn]
    return [
        *remarks,
        *drawn,
        *_feedback(traffic, sessions),
        *_prices(sessions),
        _sessions(traffic),
    ]


def _counts(traffic: LoggedTraffic, settlement: Settlement, sessions: Sessions) -> Remark:
    """Return how many decisions count."""
    n, final = len(traffic.decisions), len(sessions.rows)
    late = int((traffic.decisions.at >= min(settlement.before, settlement.begun_before)).sum())
    waiting = (
        f" {late:,} are left for later, because they or their sessions may still get feedback."
        if late
        else ""
    )
    if final:
        return Remark(
            True, f"{final:,} of {n:,} decisions were drawn from a distribution and are final.{waiting}"
        )
    why = (
        waiting
        or " Callers named the arm, or it was the most probable one, or it was kept from an earlier turn."
    )
    return Remark(
        False, f"None of {n:,} decisions was drawn from a distribution and is final.{why}", fatal=True
    )


def _drawings(sessions: Sessions) -> list[Remark]:
    """Return what the propensities allow."""
    n, known = len(sessions.rows), int(sessions.known.sum())
    remarks = []
    if known < n:
        remarks.append(Remark(False, f"{n - known:,} decisions have no logged propensity and are left out."))
    randomised = int(sessions.randomised.sum())
    if not randomised:
        alone = "Only one arm could be drawn. Add another one, and draw 1 to 5 % of the decisions at random."
        return [*remarks, Remark(False, alone, fatal=True)]
    some = sessions.randomised
    propensity = sessions.rows.propensity[some]
    remarks.append(
        Remark(
            True,
            f"{randomised:,} decisions ({randomised / n:.0%}) could have drawn another arm; the rarest draw "
            f"had a probability of {propensity.min():.2g}.",
        )
    )
    remarks += _arms(sessions)
    if any(key.policy == ESTIMATED for key in sessions.rows.draw.values):
        remarks.append(
            Remark(
                False,
                "Whether the propensities are true: they were estimated from how often arms were drawn.",
            )
        )
    return remarks


def _arms(sessions: Sessions) -> list[Remark]:
    """Return which arms were drawn often enough to be the reference."""
    drawn = {arm: int((sessions.drew(arm) & sessions.could(arm)).sum()) for arm in sessions.names}
    often = [f"{arm} {n:,} times" for arm, n in drawn.items() if n >= ENOUGH]
    rarely = [f"{arm} ({n})" for arm, n in drawn.items() if n < ENOUGH]
    remarks = []
    if often:
        remarks.append(Remark(True, f"Drawn often enough to compare with: {_several(often)}."))
    if rarely:
        remarks.append(Remark(False, f"Drawn fewer than {ENOUGH} times: {_several(rarely)}."))
    if any(sessions.chance(arm, sessions.could(arm)) is None for arm in sessions.names):
        remarks.append(
            Remark(
                False,
                "Some decisions log only the probability of the drawn arm. Intervals are wider than with the "
                "probabilities of all arms.",
            )
        )
    return remarks


def _several(texts: list[str]) -> str:
    more = len(texts) - NAMED
    return ", ".join(texts[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _feedback(traffic: LoggedTraffic, sessions: Sessions) -> list[Remark]:
    """Return what feedback says of quality."""
    n, rated = len(sessions.rows), int((~np.isnan(sessions.rows.reward)).sum())
    metrics = ", ".join(traffic.rule.metrics)
    if not rated:
        why = f"for {metrics}" if metrics else "because no metric is declared"
        return [Remark(False, f"No decision has feedback {why}: quality cannot be known.")]
    remarks = [
        Remark(True, f"{rated:,} decisions ({rated / n:.0%}) have a quality, from {metrics or 'defaults'}.")
    ]
    if rated == n and not traffic.complete and traffic.rule.default is None:
        remarks.append(
            Remark(
                False,
                "Whether each arm got feedback equally often: this file only has decisions with feedback. "
                "Use the log of the service to find out.",
            )
        )
    failed = sorted({key.drawn for key in sessions.rows.draw.values if key.failed})
    if failed and traffic.rule.failed is None:
        remarks.append(
            Remark(
                False,
                f"What failed answers of {_several(failed)} are worth: `reward.failed` is not declared, "
                "so they do not count in quality.",
            )
        )
    return remarks


def _prices(sessions: Sessions) -> list[Remark]:
    """Return what is known of dollars."""
    charged = int((sessions.usd > 0.0).sum())
    if not charged:
        none = "The log has no dollars, so savings cannot be known. Set the prices of models and engines."
        return [Remark(False, none)]
    known = Remark(True, f"{charged:,} decisions were charged, tokens from a cache at their own price.")
    return [known]


def _sessions(traffic: LoggedTraffic) -> Remark:
    """Return what is known of sessions."""
    if noninferiority.has_sessions(traffic.decisions):
        return Remark(True, "The decisions of a session, by their `episode_id`, count as one observation.")
    return Remark(False, "No decision names its session: each counts as one. Send `episode_id`.")
