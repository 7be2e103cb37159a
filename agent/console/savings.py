"""What the service saves and at which quality, compared with always using one arm, the baseline.

    log --read_comparison--> BaselineComparison --state_savings, state_quality--> Statement

The figures are those of `armwise prove`: confidence sequences that hold for every arm and at every look. You
may choose the baseline afterwards, draw all arms into one picture, and look at the page as often as you like.
A long log is compared from a recent decision on: the newest 50,000 to 100,000 decisions count.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from armwise.agent.config import AppConfig
from armwise.agent.proof import (
    LoggedTraffic,
    NoTrafficError,
    SavingsReceipt,
    choose_reference,
    read_kept,
    read_store,
    round_down,
)
from armwise.agent.reporting import write_dollars, write_further, write_number
from armwise.feedback.log import Store, listing
from armwise.feedback.ope import noninferiority
from armwise.feedback.ope.intervals import Further, forecast_more
from armwise.feedback.ope.noninferiority import (
    ArmComparison,
    Ends,
    NothingComparableError,
    Sessions,
    Unsaid,
)

WINDOW = 150_000
"""Positions of the log after which the comparison begins anew; it covers one to two times as many."""

MARGIN = 0.02
"""Difference up to which two ratings are as good, as a share of their range."""

NEEDED = noninferiority.SCALE_SESSIONS + noninferiority.ENOUGH
"""Answers from which on a comparison can be expected."""

AUDITED_AGAIN = 0.1
"""Growth of the log, as a share, after which it is audited again."""

FEW = 0.2
"""Share of the answers that are rated below which other ways to learn are suggested."""

POINTS = 100.0
"""Points of the best value of a metric; the worst has 0."""


@dataclass(frozen=True, slots=True)
class BaselineComparison:
    """What was served, compared with always using each arm.

    Attributes:
        decisions: Decisions that were drawn, and whose feedback window has closed.
        rated: Those of these that have a rating.
        drawn: How often each arm was drawn in these.
        baseline: The arm to compare with; None: no arm was drawn often enough.
        arms: The comparison with each arm that was drawn often enough.
        prices: Estimated dollars of an answer if an arm always answered.
        course: Quality compared with the baseline, by position of the log.
        doubt: Why nothing can be compared, in which case `arms` is empty; empty: something can.
        audited_to: Position of the log up to which that was found.
    """

    decisions: int = 0
    rated: int = 0
    drawn: Mapping[str, int] = field(default_factory=dict)
    baseline: str | None = None
    arms: Mapping[str, ArmComparison] = field(default_factory=dict)
    prices: Mapping[str, float] = field(default_factory=dict)
    course: tuple[tuple[int, Ends], ...] = ()
    doubt: str = ""
    audited_to: int = 0

    @property
    def with_baseline(self) -> ArmComparison | None:
        """The comparison with the baseline, if there is one."""
        return None if self.baseline is None else self.arms.get(self.baseline)

    def lead(self, one: ArmComparison) -> Ends | None:
        """Return the quality of what was served minus that of an arm, in points of 100."""
        if one.quality is None:
            return None
        value, low, high = (POINTS * end for end in one.quality)
        return value, low, high

    def rating(self, arm: str) -> Ends | None:
        """Return the rating if an arm always answered, in points of 100; None: it is not known."""
        one = self.arms.get(arm)
        lead = None if one is None else self.lead(one)
        if one is None or lead is None or one.served is None:
            return None
        value, high, low = (min(POINTS, max(0.0, POINTS * one.served - end)) for end in lead)
        return value, low, high


UNSAID = {
    Unsaid.FEW_DECIDE: "A few very expensive answers are most of the difference.",
    Unsaid.CACHE: (
        "Arms take conversations over from each other, and then pay for what their caches lack. "
        "Keep conversations on one arm."
    ),
    Unsaid.RATED_APART: "Answers as served and answers of the baseline are not rated equally often.",
    Unsaid.ONE_USER: f"One user gave more than {noninferiority.LARGEST_RATER:.0%} of the ratings.",
}
"""Why nothing is said although there are figures."""

CONTRADICT = (
    "The intervals of the metrics contradict each other: no difference is in all of them. "
    "Feedback or propensities may be wrong: check them with `armwise audit`."
)
"""What is said of an interval that is empty."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement of a page.

    Attributes:
        headline: What is known, in a few words.
        detail: The figures, in one or two sentences.
        tone: `good`, `warn`, or empty.
    """

    headline: str
    detail: str = ""
    tone: str = ""


def read_comparison(
    store: Store, config: AppConfig, earlier: BaselineComparison = BaselineComparison()
) -> BaselineComparison:
    """Compare what was served with each arm that was drawn often enough.

    The log is audited again once it has grown by a share of `AUDITED_AGAIN`.

    Args:
        store: The log.
        config: The configuration.
        earlier: The newest comparison of the same log.

    Raises:
        LogUnavailableError: Try again later.
    """
    position = store.log_seq()
    known = 0 < position <= earlier.audited_to * (1.0 + AUDITED_AGAIN)
    try:
        traffic = read_store(
            *(store, config, lambda *_: None, _find_begin(store)), doubt=earlier.doubt if known else None
        )
    except NoTrafficError:
        return BaselineComparison()
    found = compare_traffic(traffic, config.baseline, tuple(config.actions), read_kept(config))
    return replace(found, audited_to=earlier.audited_to if known else position)


def compare_traffic(
    traffic: LoggedTraffic,
    baseline: str | None = None,
    live: Collection[str] = (),
    kept: SavingsReceipt | None = None,
) -> BaselineComparison:
    """Compare what was served with each arm that was drawn often enough.

    Args:
        traffic: The decisions.
        baseline: The arm to compare with; None: that of `kept`, or else the most expensive one.
        live: The arms that can be drawn now.
        kept: The newest receipt of the log.
    """
    sessions, span = traffic.sessions(traffic.settlement), traffic.rule.reward_range
    drawn = {arm: int((sessions.drew(arm) & sessions.could(arm)).sum()) for arm in sessions.names}
    rated = int((~np.isnan(sessions.rows.reward)).sum())
    if traffic.doubt:
        return BaselineComparison(len(sessions.rows), rated, drawn, doubt=traffic.doubt)
    baseline = baseline or _choose(sessions, kept)
    former = [arm for arm in sessions.names if arm not in live]
    arms = {}
    for arm in sessions.names:
        if drawn[arm] >= noninferiority.ENOUGH or arm == baseline:
            try:
                arms[arm] = noninferiority.compare(sessions, arm, span)
            except NothingComparableError:
                continue
    if baseline not in arms:  # it is new: the savings of the time before are compared with what is gone
        known = [arm for arm in former if arm in arms]
        baseline = max(known, key=lambda arm: sessions.costs().get(arm, 0.0), default=baseline)
    course = []
    if baseline in arms:
        found = noninferiority.trace_quality(sessions, baseline, span)
        course = [(int(sessions.rows.seq[row]), quality) for row, quality in found]
    return BaselineComparison(
        len(sessions.rows), rated, drawn, baseline, arms, sessions.prices(), tuple(course)
    )


def _choose(sessions: Sessions, kept: SavingsReceipt | None) -> str | None:
    try:
        return choose_reference(sessions, kept)
    except NothingComparableError:
        return None


def _find_begin(store: Store) -> float | None:
    """Return when the decisions begin that are compared; None: with the first of the log."""
    first = (store.log_seq() // WINDOW - 1) * WINDOW
    return None if first <= 0 else listing.find_time(store, first)


# -- in words -------------------------------------------------------------------------------------


def state_savings(found: BaselineComparison) -> Statement | None:
    """Return what was saved per 1,000 answers; None: no dollars are on record."""
    one = found.with_baseline
    if one is not None and one.dollars_unsaid is not None:
        return Statement("Savings are not compared", UNSAID[one.dollars_unsaid], "warn")
    if one is None or one.saved is None or one.spent is None:
        return None
    saved, low, high = (1000.0 * end for end in one.saved)
    spent = 1000.0 * one.spent
    would = max(0.0, spent + saved)
    share = f" ({100.0 * abs(saved) / would:.0f} %)" if would else ""
    paid = f"The service cost {write_dollars(spent, would)} per 1,000 answers"
    always = f'always using "{one.reference}"'
    if low > 0.0:
        sure = f"The saving is at least {write_dollars(low, saved)}."
        detail = f"{paid}; {always} would have cost {write_dollars(would, spent)}. {sure}"
        return Statement(f"{write_dollars(saved)} saved per 1,000 answers{share}", detail, "good")
    if high < 0.0:
        sure = f"It is at least {write_dollars(-high, saved)} more."
        detail = f"{paid}; {always} would have cost {write_dollars(would, spent)}. {sure}"
        return Statement(f"{write_dollars(-saved)} more per 1,000 answers{share}", detail, "warn")
    ends = f"between {write_dollars(-low, high)} more and {write_dollars(high, low)} less"
    return Statement("No saving is certain yet", f"{paid}: {ends} than {always}.")


def state_quality(found: BaselineComparison) -> Statement | None:
    """Return how the answers are rated, compared with the baseline; None: no comparison is possible."""
    one = found.with_baseline
    lead = None if one is None else found.lead(one)
    if one is not None and one.quality_unsaid is not None and one.served is not None:
        rated = f"Rated {POINTS * one.served:.1f} of 100"
        return Statement(f"{rated}: not compared", UNSAID[one.quality_unsaid], "warn")
    if one is None or lead is None or one.served is None:
        return None
    if lead[1] > lead[2]:
        return Statement(f"Rated {POINTS * one.served:.1f} of 100: not compared", CONTRADICT, "warn")
    value, low, high = lead[0], round_down(lead[1]), -round_down(-lead[2])
    always = f'always using "{one.reference}"'
    rated = f"Rated {POINTS * one.served:.1f} of 100"
    on = f"From {one.decisions:,} rated answers. This 95 % range stays valid however often you check."
    if low > 0.0:
        ends = f"The rating is {value:.1f} points ({low:.1f} to {high:.1f}) higher than with {always}."
        return Statement(f"{rated}: better", f"{ends} {on}", "good")
    if high < 0.0:
        ends = f"The rating is {-value:.1f} points ({-high:.1f} to {-low:.1f}) lower than with {always}."
        return Statement(f"{rated}: worse", f"{ends} {on}", "warn")
    if low <= -POINTS and high >= POINTS:
        return Statement(rated, f"There are too few ratings yet to compare that with {always}.")
    about = f"{abs(value):.1f} points {'lower' if value < 0.0 else 'higher'}"
    ends = f"The rating is about {about} than with {always} ({-low:.1f} lower to {high:.1f} higher)"
    if low >= -POINTS * MARGIN:
        return Statement(f"{rated}: as good", f"{ends}. {on}", "good")
    more = forecast(*lead, one.decisions)
    when = f" That takes {write_further(more, 'rated answers')}." if more else ""
    return Statement(rated, f"{ends}: it is not known yet which is better.{when} {on}")


def share_rated(found: BaselineComparison) -> float | None:
    """Return the share of the answers that are rated, if it is small enough for a hint."""
    if found.decisions < NEEDED or not 0 < found.rated < FEW * found.decisions:
        return None
    return found.rated / found.decisions


def forecast(value: float, low: float, high: float, n: int) -> Further | None:
    """Return how many more ratings show that answers are better, worse, or the same, whichever is first.

    Args:
        value: The estimated lead in points.
        low: Lower end of the lead.
        high: Upper end of the lead.
        n: Ratings so far.

    >>> forecast(10.0, -10.0, 30.0, 100), forecast(0.0, -4.0, 4.0, 100), forecast(-3.0, -90.0, 90.0, 100)
    ((27, 920), (61, None), (880, None))
    """
    forecasts = (
        forecast_more(value + POINTS * MARGIN, value - low, n),
        forecast_more(-value, high - value, n),
    )
    return min((more for more in forecasts if more is not None), key=lambda more: more[0], default=None)


def state_waiting(
    found: BaselineComparison, n_arms: int, n_open: int, window: str, *, any_rating: bool
) -> Statement:
    """Return why quality is not compared with the baseline, and what it takes.

    Args:
        found: What is known.
        n_arms: Number of live arms.
        n_open: Answers whose feedback window is open.
        window: Length of the window, in words.
        any_rating: Whether any answer was ever rated.
    """
    if found.doubt:
        return Statement("Nothing can be compared", found.doubt, "warn")
    takes = f"The first comparison takes about {NEEDED} rated answers"
    if not any_rating:
        return Statement("No ratings yet", f"{takes}.")
    if n_arms < 2:
        return Statement("Nothing to compare with", "One arm answers everything. Add a second one.")
    n, baseline = found.drawn.get(found.baseline or "", 0), found.baseline
    if found.rated >= NEEDED and baseline is not None and n < noninferiority.ENOUGH:
        often = f'Always using "{baseline}" cannot be judged: it was drawn {n:,} times so far.'
        return Statement("Too early to compare", f"{often} It takes {noninferiority.ENOUGH} draws.")
    waits = ""
    if n_open:
        verb, they = ("answer is", "It counts") if n_open == 1 else ("answers are", "They count")
        waits = f" {n_open:,} {verb} less than {window} old. {they} after that."
    return Statement("Too early to compare", f"{takes}, and {found.rated:,} are there.{waits}")


def write_duration(seconds: float) -> str:
    """Return a length of time in words.

    >>> write_duration(1800.0), write_duration(60.0), write_duration(86400.0), write_duration(5400.0)
    ('30 minutes', '1 minute', '1 day', '90 minutes')
    """
    name, unit = next(
        (each for each in (("day", 86400.0), ("hour", 3600.0)) if seconds % each[1] == 0.0), ("minute", 60.0)
    )
    return f"{seconds / unit:g} {name}{'' if seconds == unit else 's'}"


def explain_exploration(found: BaselineComparison, live: tuple[str, ...], share: float) -> str:
    """Return what exploration is for and what it costs; empty: there is one arm, or nothing but exploration.

    Args:
        found: The comparison with each arm.
        live: The live arms.
        share: Share of the draws that all arms have alike, in (0, 1].

    What is served earns v = (1 - share) p + share u with the policy's choice p and a uniform one u. So the
    share costs share (p - u) = share (v - u) / (1 - share), and dollars likewise; v - u is the mean of the
    leads over the arms.
    """
    if len(live) < 2 or share >= 1.0:
        return ""
    said = f"{write_number(100 * share)} % of requests go to a random arm, so that you can evaluate changes."
    known = [found.arms[arm] for arm in live if arm in found.arms]
    leads = [lead for one in known if (lead := found.lead(one)) is not None]
    if len(leads) < len(live):
        return said
    rate = share / (1.0 - share)
    value, low, _ = (rate * sum(ends) / len(live) for ends in zip(*leads, strict=True))
    parts = [f"{write_number(value, 2)} points of 100 of the average rating"] if low > 0.0 else []
    saved = [one.saved for one in known if one.saved is not None]
    if len(saved) == len(live):
        usd = -1000.0 * rate * sum(ends[0] for ends in saved) / len(live)
        parts += [f"about {write_dollars(usd)} per 1,000 answers"] if usd > 0.0 else []
    if not parts:
        return f"{said} What this costs cannot be measured yet."
    return f"{said} This currently costs {' and '.join(parts)}."
