"""A log in memory of given facts, joined in portions."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from functools import partial

import sqlalchemy as sa

from armwise.feedback.events import Feedback
from armwise.feedback.log import Fact, Store
from armwise.feedback.log import tables as t
from armwise.feedback.reward import RewardRule
from armwise.feedback.training_log import raters
from armwise.feedback.training_log.join import Joined, read_window

Sent = Fact | tuple[Fact, ...]
"""A fact, or facts that were sent together."""


def join(rule: RewardRule, facts: Sequence[Sent], portion: int | None = None) -> list[Joined]:
    """Join facts, some at once or all, and return what is ready, in order."""
    with closing(Store("sqlite://", clock=lambda: 1e9)) as store:
        commit = list[Fact]()
        for sent in facts:
            together = sent if isinstance(sent, tuple) else (sent,)
            # feedback of one commit counts as sent together
            if commit and isinstance(commit[-1], Feedback) and isinstance(together[0], Feedback):
                store.append(commit)
                commit = []
            commit += together
        store.append(commit)
        return _join(store, rule, portion or store.log_seq())


def _join(store: Store, rule: RewardRule, portion: int) -> list[Joined]:
    found: list[Joined] = []
    seq, log_at, n_learned, left_out, end = 0, 0.0, 0, list[str](), store.log_seq()
    while seq < end:
        upto = min(seq + portion, end)
        with store.writing() as connection:
            shares = partial(raters.read_shares, connection, rule, n_learned, left_out)
            ready, log_at = read_window(connection, rule, seq, log_at, upto, shares)
            for each in ready:
                if not each.learned:
                    left_out.append(each.rater or "")
                    continue
                n_learned += 1
                row = {**asdict(each), "join": rule.join, "joined_by": each.by, "seq": n_learned}
                if each.rater is not None:
                    row["left_out"], left_out = left_out or None, []
                known = {name: row.get(name) for name in t.examples.c.keys()}  # noqa: SIM118 - columns
                connection.execute(sa.insert(t.examples), known)
        found += ready
        seq = upto
    return found
