"""What the console says of savings and quality, from a recent part of the log, and what is missing yet.

    log --read_statements--> Statements      `armwise.agent.proof.statements` makes them

A long log is compared from a recent decision on: the newest 50,000 to 100,000 decisions count.
"""

from armwise.agent.config import AppConfig
from armwise.agent.proof import (
    About,
    NoTrafficError,
    Statement,
    Statements,
    noninferiority,
    read_kept,
    read_store,
    state,
)
from armwise.agent.reporting import write_number
from armwise.feedback.log import Store, listing

WINDOW = 150_000
"""Positions of the log after which the comparison begins anew; it covers one to two times as many."""

NEEDED = noninferiority.SCALE_SESSIONS + noninferiority.ENOUGH
"""Decisions from which on a comparison can be expected."""

AUDITED_AGAIN = 0.1
"""Growth of the log, as a share, after which it is audited again."""

FEW = 0.2
"""Share of the answers that are rated below which other ways to learn are suggested."""


def read_statements(
    store: Store, config: AppConfig, doubt: str = "", audited_to: int = 0
) -> tuple[Statements, int]:
    """Return what can be said of a log, and the position up to which it was audited.

    The log is audited again once it has grown by a share of `AUDITED_AGAIN`.

    Args:
        store: The log.
        config: The configuration.
        doubt: What the last audit of the same log found.
        audited_to: Position up to which that was.

    Raises:
        LogUnavailableError: Try again later.
    """
    position = store.log_seq()
    known = 0 < position <= audited_to * (1.0 + AUDITED_AGAIN)
    try:
        traffic = read_store(
            *(store, config, lambda *_: None, _find_begin(store)), doubt=doubt if known else None
        )
    except NoTrafficError:
        return Statements(), 0
    receipt = read_kept(config)
    before = () if receipt is None else (receipt.figures.reference,)
    found = state(traffic, config.baseline, live=tuple(config.actions), earlier=before)
    return found, audited_to if known else position


def _find_begin(store: Store) -> float | None:
    """Return when the decisions begin that are compared; None: with the first of the log."""
    first = (store.log_seq() // WINDOW - 1) * WINDOW
    return None if first <= 0 else listing.find_time(store, first)


def share_rated(found: Statements) -> float | None:
    """Return the share of the answers that are rated, if it is small enough for a hint."""
    if found.decisions < NEEDED or not 0 < found.rated < FEW * found.decisions:
        return None
    return found.rated / found.decisions


def state_quality(found: Statements, n_arms: int, n_open: int, window: str, *, any_rating: bool) -> Statement:
    """Return what is said of quality; where no ratings can be compared yet, what it takes.

    Args:
        found: What is known.
        n_arms: Number of live arms.
        n_open: Answers whose feedback window is open.
        window: Length of the window, in words.
        any_rating: Whether any answer was ever rated.
    """
    said = found.find(About.QUALITY)
    if said is not None and said.silence != "no_feedback":
        return said
    if found.doubt:
        return _wait("Nothing can be compared", found.doubt, "warn")
    takes = f"Ratings count after the first {noninferiority.SCALE_SESSIONS:,} sessions, which set the scale"
    if not any_rating:
        return _wait("No ratings yet", f"No answer is rated. {takes}.")
    if n_arms < 2:
        return _wait("Nothing to compare with", "One arm answers everything. Add a second one.")
    n, reference = found.drawn.get(found.reference or "", 0), found.reference
    if found.decisions >= NEEDED and reference is not None and n < noninferiority.ENOUGH:
        often = f'"{reference}" cannot be compared with: it was drawn {n:,} times so far.'
        return _wait("Too early to compare", f"{often} It takes {noninferiority.ENOUGH} draws.")
    waits = ""
    if n_open:
        verb, they = ("answer is", "It counts") if n_open == 1 else ("answers are", "They count")
        waits = f" {n_open:,} {verb} less than {window} old. {they} after that."
    are = "decision counts so far, rated:" if found.decisions == 1 else "decisions count so far, rated:"
    return _wait("Too early to compare", f"{takes}. {found.decisions:,} {are} {found.rated:,}.{waits}")


def _wait(headline: str, detail: str, tone: str = "") -> Statement:
    return Statement(About.QUALITY, "", headline, detail, silence="too_early", tone=tone)


def write_duration(seconds: float) -> str:
    """Return a length of time in words.

    >>> write_duration(1800.0), write_duration(60.0), write_duration(86400.0), write_duration(5400.0)
    ('30 minutes', '1 minute', '1 day', '90 minutes')
    """
    name, unit = next(
        (each for each in (("day", 86400.0), ("hour", 3600.0)) if seconds % each[1] == 0.0), ("minute", 60.0)
    )
    return f"{seconds / unit:g} {name}{'' if seconds == unit else 's'}"


def explain_exploration(n_arms: int, share: float) -> str:
    """Return what exploration is for; empty: there is one arm, or nothing but exploration.

    Args:
        n_arms: Number of live arms.
        share: Share of the draws that all arms have alike, in (0, 1].
    """
    if n_arms < 2 or share >= 1.0:
        return ""
    return f"{write_number(100 * share)} % of requests go to a random arm, so that you can evaluate changes."
