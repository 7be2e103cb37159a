"""What can be known of a log's traffic, and what cannot, in plain words."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from armwise.agent.proof import noninferiority
from armwise.agent.proof.noninferiority import ENOUGH, Sessions, Settlement
from armwise.agent.proof.traffic import LoggedTraffic
from armwise.feedback.events import ESTIMATED

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
    remarks += _draws(sessions)
    if any(remark.fatal for remark in remarks):
        return remarks
    remarks += [*_feedback(traffic, sessions), _prices(sessions)]
    if noninferiority.has_sessions(traffic.decisions):
        text = "The decisions of a session, by their `episode_id`, count as one observation."
        return [*remarks, Remark(True, text)]
    text = "No decision names its session: each counts as one. Send `episode_id`."
    return [*remarks, Remark(False, text)]


def _counts(traffic: LoggedTraffic, settlement: Settlement, sessions: Sessions) -> Remark:
    n, final = len(traffic.decisions), len(sessions.rows)
    late = int((traffic.decisions.at >= min(settlement.before, settlement.begun_before)).sum())
    waiting = (
        f" {late:,} are left for later, because they or their sessions may still get feedback."
        if late
        else ""
    )
    if final:
        text = f"{final:,} of {n:,} decisions were drawn from a distribution and are final.{waiting}"
        return Remark(True, text)
    named = " Callers named the arm, or it was the most probable one, or it was kept from an earlier turn."
    text = f"None of {n:,} decisions was drawn from a distribution and is final.{waiting or named}"
    return Remark(False, text, fatal=True)


def _draws(sessions: Sessions) -> Iterator[Remark]:
    """Yield what the propensities allow."""
    n, known = len(sessions.rows), int(sessions.known.sum())
    if known < n:
        yield Remark(False, f"{n - known:,} decisions have no logged propensity and are left out.")
    randomised = int(sessions.randomised.sum())
    if not randomised:
        alone = "Only one arm could be drawn. Add another one, and draw 1 to 5 % of the decisions at random."
        yield Remark(False, alone, fatal=True)
        return
    rarest = sessions.rows.propensity[sessions.randomised].min()
    yield Remark(
        True,
        f"{randomised:,} decisions ({randomised / n:.0%}) could have drawn another arm; the rarest draw "
        f"had a probability of {rarest:.2g}.",
    )
    drawn = {arm: int((sessions.drew(arm) & sessions.could(arm)).sum()) for arm in sessions.names}
    if often := [f"{arm} {n:,} times" for arm, n in drawn.items() if n >= ENOUGH]:
        yield Remark(True, f"Drawn often enough to compare with: {_several(often)}.")
    if rarely := [f"{arm} ({n})" for arm, n in drawn.items() if n < ENOUGH]:
        yield Remark(False, f"Drawn fewer than {ENOUGH} times: {_several(rarely)}.")
    if any(sessions.chance(arm, sessions.could(arm)) is None for arm in sessions.names):
        yield Remark(
            False,
            "Some decisions log only the probability of the drawn arm. Intervals are wider than with the "
            "probabilities of all arms.",
        )
    if any(key.policy == ESTIMATED for key in sessions.rows.draw.values):
        yield Remark(
            False,
            "Whether the propensities are true: they were estimated from how often arms were drawn.",
        )


def _several(texts: list[str]) -> str:
    more = len(texts) - NAMED
    return ", ".join(texts[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _feedback(traffic: LoggedTraffic, sessions: Sessions) -> Iterator[Remark]:
    """Yield what feedback says of quality."""
    n, rated = len(sessions.rows), int((~np.isnan(sessions.rows.reward)).sum())
    metrics = ", ".join(traffic.rule.metrics)
    if not rated:
        why = f"for {metrics}" if metrics else "because no metric is declared"
        yield Remark(False, f"No decision has feedback {why}: quality cannot be known.")
        return
    yield Remark(True, f"{rated:,} decisions ({rated / n:.0%}) have a quality, from {metrics or 'defaults'}.")
    if traffic.outside:
        yield Remark(False, traffic.outside)
    if rated == n and not traffic.complete and traffic.rule.default is None:
        yield Remark(
            False,
            "Whether each arm got feedback equally often: this file only has decisions with feedback. "
            "Use the log of the service to find out.",
        )
    failed = sorted({key.drawn for key in sessions.rows.draw.values if key.failed})
    if failed and traffic.rule.failed is None:
        yield Remark(
            False,
            f"What failed answers of {_several(failed)} are worth: `reward.failed` is not declared, "
            "so they do not count in quality.",
        )


def _prices(sessions: Sessions) -> Remark:
    if charged := int((sessions.usd > 0.0).sum()):
        return Remark(True, f"{charged:,} decisions were charged, tokens from a cache at their own price.")
    none = "The log has no dollars, so savings cannot be known. Set the prices of models and engines."
    return Remark(False, none)
