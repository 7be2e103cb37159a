"""Recent erasures, which also apply to turns that were under way.

A turn that began before an erasure may commit its decision after it. So the record of an erasure has a keyed
hash of its subject for `UNDER_WAY_S`, and facts about that subject are stored without texts meanwhile.
"""

import hashlib
import hmac
import json
from collections.abc import Mapping
from enum import StrEnum

import sqlalchemy as sa

from armwise.feedback.events import Decision, Feedback
from armwise.feedback.log import tables as t
from armwise.feedback.log.facts import Fact

_o = t.operations.c

NAMED_ERASURE = (_o.kind == sa.literal_column("'erasure'")) & (_o.subject > sa.literal_column("''"))
"""Condition that an operation is an erasure whose subject is still named, by its hash."""

UNDER_WAY_S = 120.0
"""Seconds after an erasure in which facts about its subject are stored without texts; a turn draws sooner."""


class Scope(StrEnum):
    """Kind of the subject of an erasure."""

    USER = "user"
    EPISODE = "episode"
    DECISION = "decision"
    AGE = "age"


def subject_digest(secret: str, scope: Scope, name: str) -> str:
    """Return the hash of the subject of an erasure.

    Args:
        secret: Secret of the draws.
        scope: Kind of the subject.
        name: Hash of a user, or id of an episode or a decision in the log.
    """
    about = json.dumps(["erased", scope, name]).encode()
    return hmac.new(secret.encode(), about, hashlib.sha256).hexdigest()


def find_erasure(fact: Fact, numbers: Mapping[str, int], secret: str) -> int | None:
    """Return the number of the recent erasure that applies to a decision or feedback, if one does.

    Args:
        fact: The fact.
        numbers: Number of each recent erasure, by the hash of its subject.
        secret: Secret of the draws.
    """
    match fact:
        case Decision(id=name, episode_id=episode, user_digest=user):
            pass
        case Feedback(decision_id=name, episode_id=episode):
            user = None
        case _:
            return None
    named = (Scope.DECISION, name), (Scope.EPISODE, episode), (Scope.USER, user)
    digests = [subject_digest(secret, scope, subject) for scope, subject in named if subject is not None]
    return next((numbers[digest] for digest in digests if digest in numbers), None)
