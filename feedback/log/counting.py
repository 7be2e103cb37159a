"""Which feedback counts for a decision, and until when: the one rule, for numbers and for rows.

    made, `decided_at` ----------------> `deadline` --> closing
    a value on its episode counts        feedback that is received later counts no more
    from here on                                        time of the log after which it is closed

The learner, the reply to feedback, the console and the evaluation ask these functions.
"""

import sqlalchemy as sa

from armwise.feedback.clock import GRACE_S
from armwise.feedback.events import Feedback, FeedbackKind


def find_closing(deadline: float, logged_at: float) -> float:
    """Return the time of the log after which a decision is closed, unless a turn continues it.

    Args:
        deadline: Until when its feedback counts, seconds since the epoch.
        logged_at: The log's time when it was committed.
    """
    return max(deadline, logged_at) + GRACE_S


def counts(item: Feedback, decided_at: float, deadline: float) -> bool:
    """Return whether feedback on a decision, or on its episode, was received in time to count for it.

    A value on an episode from before the decision belongs to earlier ones. What is taken back, or shown, on
    an episode is so for every decision of it.
    """
    if item.received_at > deadline:
        return False
    return (
        item.received_at >= decided_at or item.decision_id is not None or item.kind is not FeedbackKind.VALUE
    )


def is_open(
    deadline: sa.ColumnElement[float], logged_at: sa.ColumnElement[float], at: sa.ColumnElement[float]
) -> sa.ColumnElement[bool]:
    """Return the condition that a decision is not closed at a time of the log, by `find_closing`."""
    grace = sa.literal_column(repr(GRACE_S), sa.Double)
    return (deadline + grace >= at) | (logged_at + grace >= at)


def find_open_since(log_at: float, wait_s: float) -> float:
    """Return the time of the log before whose decisions all are closed, for a wait time in seconds.

    A decision is made before it is committed, so it is closed at most the wait time and the grace after its
    commit. Twice the grace, since sums are rounded.
    """
    return log_at - wait_s - 2 * GRACE_S
