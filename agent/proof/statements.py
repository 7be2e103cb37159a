"""What is said of savings and quality: all dollars and points that pages, commands and messages print.

    LoggedTraffic --state--> Statements
    ArmComparison --state_dollars, state_quality--> Statement      what a receipt holds, in words

A statement names its reference, the requests that it is about and what it assumes. Where it could be false it
is silent, and says why. The ranges are those of `armwise.agent.proof.noninferiority`: they hold for all arms
and at every look, so you may choose the reference afterwards and look as often as you like.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from armwise.agent.proof import noninferiority
from armwise.agent.proof.judged import AnswerAudit
from armwise.agent.proof.noninferiority import ArmComparison, Ends, NothingComparableError, Sessions, Unsaid
from armwise.agent.proof.traffic import LoggedTraffic
from armwise.agent.reporting import one_line, write_dollars, write_further
from armwise.feedback.ope.intervals import Further, forecast_more
from armwise.feedback.reward import RewardRule

POINTS = 100.0
"""Points of the best reward; the worst has 0."""

MARGIN = 0.02
"""Difference up to which two rewards are as good, as a share of their range."""

NAME_CHARS = 60
"""Longest name of an arm that is shown."""

SURE = f"All ranges hold together with {1.0 - noninferiority.ERROR:.0%} confidence, however often you check."


class About(StrEnum):
    """What a statement is about."""

    DOLLARS = "dollars"
    """Dollars saved per 1,000 requests, beside the reference."""

    QUALITY = "quality"
    """Points of 100 gained by a rated answer, beside the reference."""

    BEST_ARM = "best_arm"
    """The arm whose rated answers are better than all others."""


@dataclass(frozen=True, slots=True)
class Statement:
    """What is said, or why nothing is.

    Attributes:
        about: What it is about.
        reference: The arm that it compares with; of `BEST_ARM` the best one. Empty: none.
        headline: The statement in a few words.
        detail: The same in full: population, range and reference. Where it is silent, the reason.
        short: The certain part in the fewest words, for a badge; empty where it is silent.
        population: The requests or answers that it is about.
        assumptions: What it does not count or takes for granted, a sentence each.
        estimate: Dollars saved per 1,000 requests, or points of 100 gained; None: it is silent.
        low: Lower end of that.
        high: Upper end of that; None: nothing bounds it.
        silence: Why nothing is said, such as an `Unsaid`; empty: something is.
        tone: `good`, `warn`, or empty.
    """

    about: About
    reference: str
    headline: str
    detail: str
    short: str = ""
    population: str = ""
    assumptions: tuple[str, ...] = ()
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    silence: str = ""
    tone: str = ""

    @property
    def text(self) -> str:
        """The detail with its assumptions; where it is silent, the headline with the reason."""
        said = f"{self.headline}: {self.detail}" if self.silence else self.detail
        return " ".join([said, *self.assumptions])


@dataclass(frozen=True, slots=True)
class Statements:
    """All that can be said of a log, compared with always using each arm.

    Attributes:
        reference: The arm to compare with; None: no arm was drawn often enough.
        all: The statements: dollars and quality by arm, the reference first, then the best arm.
        decisions: Decisions that were drawn, and whose feedback window has closed.
        rated: Those of these that have a rating, or a reward because silence counts.
        drawn: How often each arm was drawn in these.
        course: Points of 100 gained compared with the reference, by position of the log.
        doubt: Why nothing can be compared, in which case `all` is empty; empty: something can.
    """

    reference: str | None = None
    all: tuple[Statement, ...] = ()
    decisions: int = 0
    rated: int = 0
    drawn: Mapping[str, int] = field(default_factory=dict)
    course: tuple[tuple[int, Ends], ...] = ()
    doubt: str = ""

    def find(self, about: About, reference: str | None = None) -> Statement | None:
        """Return the statement on something, beside an arm, by default the reference.

        Templates name what it is about by its text, so that is compared by value.
        """
        beside = self.reference if reference is None else reference
        fits = (one for one in self.all if one.about == about)
        return next((one for one in fits if about == About.BEST_ARM or one.reference == beside), None)

    @property
    def compared(self) -> tuple[str, ...]:
        """The arms that what was served is compared with, the reference first."""
        return tuple(dict.fromkeys(one.reference for one in self.all if one.about is not About.BEST_ARM))


def state(
    traffic: LoggedTraffic,
    reference: str | None = None,
    *,
    live: Collection[str] = (),
    earlier: Collection[str] = (),
) -> Statements:
    """Return all that can be said of a log.

    Args:
        traffic: The log.
        reference: The arm to compare with; None: chosen by `choose_reference`.
        live: The arms that can be drawn now.
        earlier: References of earlier receipts of the same log, the first that counts first.
    """
    settlement = traffic.settlement
    sessions = traffic.sessions(settlement)
    drawn = {arm: int((sessions.drew(arm) & sessions.could(arm)).sum()) for arm in sessions.names}
    counts = len(sessions.rows), int((~np.isnan(sessions.rows.reward)).sum()), drawn
    if traffic.doubt:
        return Statements(None, (), *counts, doubt=traffic.doubt)
    if reference is None:
        try:
            reference = choose_reference(sessions, *earlier)
        except NothingComparableError:
            return Statements(None, (), *counts)
    arms = dict(_compare(traffic, sessions, drawn, reference))
    if reference not in arms:  # it is new: the savings of the time before are compared with what is gone
        costs, gone = sessions.costs(), [arm for arm in arms if arm not in live]
        reference = max(gone, key=lambda arm: costs.get(arm, 0.0), default=reference)
    first = [reference] if reference in arms else []
    ordered = [arms[arm] for arm in dict.fromkeys([*first, *arms])]
    reward = describe_reward(traffic.rule, before_costs=traffic.before_costs)
    found = [said for one in ordered for said in (state_dollars(one), state_quality(one, reward))]
    found += [state_best_arm(ordered, reward)] if len(sessions.names) > 1 and ordered else []
    course: tuple[tuple[int, Ends], ...] = ()
    if reference in arms and arms[reference].quality is not None:
        course = tuple(_trace(sessions, reference, traffic.rule))
    return Statements(reference, tuple(found), *counts, course)


def _compare(
    traffic: LoggedTraffic, sessions: Sessions, drawn: Mapping[str, int], reference: str
) -> Iterator[tuple[str, ArmComparison]]:
    """Yield the comparison with each arm that was drawn often enough, and with the reference."""
    for arm in sessions.names:
        if drawn[arm] >= noninferiority.ENOUGH or arm == reference:
            try:
                yield arm, traffic.compare(sessions, traffic.settlement, arm)
            except NothingComparableError:
                continue


def _trace(sessions: Sessions, reference: str, rule: RewardRule) -> Iterator[tuple[int, Ends]]:
    for row, (value, low, high) in noninferiority.trace_quality(sessions, reference, rule.reward_range):
        yield int(sessions.rows.seq[row]), (POINTS * value, POINTS * low, POINTS * high)


def choose_reference(sessions: Sessions, *earlier: str | None) -> str:
    """Return the reference of an earlier receipt, or else the dearest arm; without dollars, the best one.

    A dear arm that was hardly drawn yet is chosen, too, so that the reference does not change as its draws
    come in.

    Args:
        sessions: The decisions.
        earlier: References of receipts of the same log, the first that counts first.

    Raises:
        NothingComparableError: No arm was drawn with dollars, or often enough with feedback.
    """
    for reference in earlier:
        if reference is not None and reference in sessions.names:
            return reference
    costs = sessions.costs()
    found = costs if any(costs.values()) else sessions.qualities()
    if not found:
        raise NothingComparableError(
            f"no arm was drawn with dollars on record, or {noninferiority.ENOUGH} times with feedback"
        )
    return max(found, key=lambda arm: (found[arm], arm))


# -- in words -------------------------------------------------------------------------------------

UNSAID = {
    Unsaid.FEW_DECIDE: "a few very expensive answers are most of the difference.",
    Unsaid.CACHE: (
        "answers cost more if another arm answered before them, or if their arm was idle, as where its cache "
        "is cold. If one arm answers everything, it pays less. Keep each conversation on one arm."
    ),
    Unsaid.HISTORY: (
        "what an answer costs depends on which arm answered before it in its conversation. Caches may be "
        "cold, or an arm writes long answers that later ones read again. Keep each conversation on one arm."
    ),
    Unsaid.CACHE_UNKNOWN: (
        "arms take conversations over from each other, too rarely to see whether that makes answers dearer. "
        "Keep each conversation on one arm, or wait for more requests."
    ),
    Unsaid.RATED_APART: "answers as served and answers of {reference} are not rated equally often.",
    Unsaid.LATE: (
        "ratings that came too late to count are better or worse than those in time. Set a longer "
        "`wait_time`."
    ),
    Unsaid.OUTSIDE: "ratings are outside the range of their metric. Declare the range that they have.",
    Unsaid.TOO_WIDE: (
        "it is too early, since the range still covers all that is possible. It takes more answers of "
        "{reference}."
    ),
    Unsaid.ONE_USER: f"one user gave more than {noninferiority.LARGEST_RATER:.0%} of the ratings.",
}
"""Why nothing is said although there are figures."""

CONTRADICT = (
    "no difference fits all ratings. Feedback or propensities may be wrong: check them with `armwise audit`."
)
"""What is said of a range that is empty."""

LATER_COSTS = (
    "Not counted: what a longer answer costs later in its conversation, and users who ask again in other "
    "words."
)

SILENCE = "silence counts as"
"""Words of `describe_reward` where answers that nobody rated have a reward, too."""


@dataclass(frozen=True, slots=True)
class _Wording:
    """How sentences about quality name the answers that count.

    Attributes:
        which: What follows their number.
        of_arm: What those of an arm are called.
        headline: What a headline is about.
        best: How a headline says by what an arm is the best.
        short: What a badge is about.
        assumed: What is assumed.
    """

    which: str
    of_arm: str
    headline: str
    best: str
    short: str
    assumed: str


_RATED = _Wording(
    " rated in time",
    "rated answers",
    "Rated answers",
    "on rated answers",
    "answers rated in time",
    "Answers that nobody rated in time may differ.",
)

_ALL = _Wording(
    ", rated or not,",
    "answers",
    "Mean reward counting silence",
    "by mean reward counting silence",
    "mean reward counting silence",
    "The reward of an answer that nobody rated is a setting: no user said it.",
)


def _find_wording(reward: str) -> _Wording:
    return _ALL if SILENCE in reward else _RATED


AUDITED = (
    "The judge read questions and answers, not the passages. Its range holds for one audit, not for the best "
    "of several."
)
"""What is assumed where a judge has graded answers."""


def state_dollars(one: ArmComparison) -> Statement:
    """Return what was saved per 1,000 requests, beside the reference answering the same ones.

    An answer of the reference counts up to a largest cost, and nothing bounds what one may cost. So only the
    lower end is said.
    """
    name, about = shorten(one.reference), About.DOLLARS
    if one.dollars_unsaid is not None:
        return _be_silent(about, one, "Savings are not compared", one.dollars_unsaid)
    if one.saved is None or one.spent is None:
        none = "the log has no dollars, or too few draws have any."
        return Statement(about, one.reference, "What was saved is not known", none, silence="no_dollars")
    saved, low = (1000.0 * end for end in one.saved)
    spent, most, same = 1000.0 * one.spent, max(abs(saved), abs(low)), "per 1,000 of the same requests"
    size, least = write_dollars(abs(saved), most), write_dollars(abs(low), most)
    sure = f"at least {least} less" if low > 0.0 else f"at most {least} more"
    return Statement(
        about,
        one.reference,
        f"At least {least} saved {same}" if low > 0.0 else "No saving is certain yet",
        f"These same {one.priced:,} requests (after the first {one.priced_scale:,}, which set the scale) "
        f"cost {sure} per 1,000 than if {name} had answered each of them (estimate: {size} "
        f"{'less' if saved >= 0.0 else 'more'}). They cost {write_dollars(spent, most)} per 1,000, and "
        f"{name} answered {one.priced_drawn:,} of them.",
        f"{sure} {same}",
        f"{one.priced:,} requests",
        (LATER_COSTS, *_note_costs(one, name)),
        saved,
        low,
        None,
        tone="good" if low > 0.0 else "",
    )


def _note_costs(one: ArmComparison, name: str) -> Iterator[str]:
    """Yield what limits the comparison of dollars, a sentence each."""
    if one.cut:
        largest, excess = write_dollars(one.largest_cost or 0.0), write_dollars(one.beyond_largest)
        yield (
            f"{one.cut:,} answer{'' if one.cut == 1 else 's'} cost more than {largest} ({excess} more in "
            f"all). What was paid counts in full, but an answer of {name} counts up to {largest}."
        )
    if one.unpriced:
        lack = "request lacks" if one.unpriced == 1 else "requests lack"
        yield f"{one.unpriced:,} {lack} a cost and count as the worse case, so less is known."


def describe_reward(rule: RewardRule, *, before_costs: bool = False) -> str:
    """Return what quality is, in words that name what it is made of.

    Args:
        rule: The rule of quality.
        before_costs: Whether the reward of policies has costs, which `rule` leaves out.

    >>> from armwise.feedback.reward import Metric
    >>> describe_reward(RewardRule(metrics={"thumb": Metric()}, default=1.0))
    'the mean reward (thumb, where silence counts as 1)'
    """
    made_of = ", ".join(one_line(name) for name in rule.metrics)
    silence = "" if rule.default is None else f"{SILENCE} {rule.default:g}"
    said = ", where ".join(part for part in (made_of, silence) if part)
    name = "the mean reward before costs" if before_costs else "the mean reward"
    return f"{name} ({said})" if said else name


def state_quality(one: ArmComparison, reward: str) -> Statement:
    """Return how rated answers compare with rated answers of the reference; all answers if silence counts.

    Args:
        one: The comparison.
        reward: What `describe_reward` says.
    """
    name, about = shorten(one.reference), About.QUALITY
    headline = "Quality is not compared"
    if one.quality_unsaid is not None:
        return _be_silent(about, one, headline, one.quality_unsaid)
    if one.quality is None or one.served is None:
        none = "the log has no feedback on answers that could be compared."
        return Statement(about, one.reference, "The quality is not known", none, silence="no_feedback")
    value, low, high = (POINTS * end for end in one.quality)
    if low > high:
        return Statement(about, one.reference, headline, CONTRADICT, silence="contradiction", tone="warn")
    words = _find_wording(reward)
    n, low, high = _count_answers(one, words), round_down(low), -round_down(-high)
    tone, word, short = _compare_ends(name, low, high)
    more = None if tone else forecast(value, low, high, one.decisions)
    takes = write_further(more, words.of_arm) if more else ""
    when = f" To show whether it is higher, equal or lower takes {takes}." if takes else ""
    beyond = f" {one.beyond:,} are left out." if one.beyond else ""
    limit = f"The first {one.session_limit} decisions of each session count in quality;{beyond}"
    return Statement(
        about,
        one.reference,
        f"{words.headline}: {word}",
        f"Of {n}, {reward} is {POINTS * one.served:.1f} of 100. That is {_points(value)} than {words.of_arm} "
        f"of {name} have for such requests (range: {_ends(low, high)}). {name} gave {one.drawn:,} of these "
        f"answers.{when}",
        _write_worst(words.short, short, low),
        n,
        (words.assumed, *([limit] if one.beyond else [])),
        value,
        low,
        high,
        tone=tone,
    )


def state_audited(audit: AnswerAudit, reference: str) -> Statement:
    """Return how all answers compare with those of the reference, as a judge sees them.

    Args:
        audit: What the judge said.
        reference: The arm that it is compared with.
    """
    name, judge = shorten(reference), shorten(audit.judge)
    value, low, high = (POINTS * end for end in audit.quality)
    low, high = round_down(low), -round_down(-high)
    tone, word, short = _compare_ends(name, low, high)
    n, read = f"{audit.answers:,} answers", len(audit.grades)
    unread = sum(grade is None for _, grade in audit.grades)
    than = f"{_points(value)} than answers of {name} have for such requests (range: {_ends(low, high)})."
    found = f"estimated from {read:,} that were drawn at random: {than}"
    if read == audit.answers:
        found = f"{than} {judge} read all of them."
    return Statement(
        About.QUALITY,
        reference,
        f"All answers, as {judge} judges: {word}",
        f"The mean grade by {judge} of all {n}, rated or not, is {found}",
        _write_worst(f"mean grade by {judge}", short, low),
        n,
        (AUDITED, *([f"Answers without a grade ({unread:,}) count as the worse case."] if unread else [])),
        value,
        low,
        high,
        tone=tone,
    )


def _compare_ends(name: str, low: float, high: float) -> tuple[str, str, str]:
    """Return the tone of a range of points, how answers compare with those of an arm, and that in short."""
    if low > 0.0:
        return "good", f"better than {name}'s", "better"
    if high < 0.0:
        return "warn", f"worse than {name}'s", "worse"
    if low >= -POINTS * MARGIN:
        return "good", f"as good as {name}'s", "as good"
    return "", f"not known yet whether better or worse than {name}'s", "not known to be better or worse"


def _count_answers(one: ArmComparison, words: _Wording) -> str:
    """Return how many answers count in quality, and which do not, in words."""
    n, first = f"{one.decisions:,} answer{'' if one.decisions == 1 else 's'}{words.which}", "after the first"
    if one.sessions != one.decisions:
        among = f"in {one.sessions:,} sessions {first} {noninferiority.SCALE_SESSIONS}"
    else:
        among = (
            f"{first} {noninferiority.SCALE_SESSIONS} {'sessions' if one.session_limit > 1 else 'requests'}"
        )
    return f"{n} {among}, which set the scale"


def _write_worst(what: str, word: str, low: float) -> str:
    return f"{what} {word}, {low:+.1f} points at worst"


def _points(value: float) -> str:
    return f"{abs(value):.1f} points of 100 {'higher' if value >= 0.0 else 'lower'}"


def _ends(low: float, high: float) -> str:
    return " to ".join(_points(end).replace(" points of 100", "") if end else "equal" for end in (low, high))


def state_best_arm(arms: Collection[ArmComparison], reward: str) -> Statement:
    """Return which arm has the best rated answers, if that is certain.

    Each arm is compared with what was served, and the ranges hold together: so two arms differ by at least
    the distance of their ranges, where both are about the same answers.

    Args:
        arms: The comparison with each arm.
        reward: What `describe_reward` says.
    """
    leads = {one.reference: one.quality for one in arms if one.quality is not None}
    if any(low > high for _, low, high in leads.values()):
        return Statement(
            About.BEST_ARM, "", "The best arm is not known", CONTRADICT, silence="contradiction", tone="warn"
        )
    same = len({(one.decisions, one.sessions) for one in arms}) == 1
    unknown = "it is not certain yet that one arm is better than all others."
    silent = Statement(About.BEST_ARM, "", "The best arm is not known", unknown, silence="too_early")
    if len(leads) < 2 or not same or any(len(leads) < one.n_arms for one in arms):
        return silent
    best = min(leads, key=lambda arm: leads[arm][2])
    ahead = POINTS * min(low - leads[best][2] for arm, (_, low, _) in leads.items() if arm != best)
    if round_down(ahead) <= 0.0:
        return silent
    words, least = _find_wording(reward), round_down(ahead)
    n = _count_answers(next(iter(arms)), words)
    return Statement(
        About.BEST_ARM,
        best,
        f"Best {words.best}: {shorten(best)}",
        f"By {n}, {reward} of {words.of_arm} of {shorten(best)} is at least "
        f"{least:.1f} points of 100 higher than any other arm's.",
        f"{shorten(best)} is best",
        n,
        (words.assumed,),
        low=least,
        tone="good",
    )


def _be_silent(about: About, one: ArmComparison, headline: str, reason: Unsaid) -> Statement:
    detail = UNSAID[reason].replace("{reference}", shorten(one.reference))
    tone = "" if reason is Unsaid.TOO_WIDE else "warn"
    return Statement(about, one.reference, headline, detail, silence=reason, tone=tone)


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


def round_down(points: float) -> float:
    """Return a number rounded down to a tenth: rounded ends are not narrower than they are.

    >>> round_down(-3.34), round_down(1.29), round_down(-2.0000000001)
    (-3.4, 1.2, -2.0)
    """
    return math.floor(round(10.0 * points, 6)) / 10.0


def shorten(name: str) -> str:
    """Return the name of an arm, cut to a length, with codes in place of control characters."""
    name = one_line(name)
    return name if len(name) <= NAME_CHARS else name[: NAME_CHARS - 1] + "\u2026"
