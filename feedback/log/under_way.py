"""What an erasure was about, for as long as a turn from before it may be under way.

A turn that began before an erasure may commit its decision after it. So the record of an erasure has a keyed
hash of its subject for some time, and what is appended about that subject meanwhile is stored without texts.
"""

import hashlib
import hmac
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from feedback.events import Decision, Execution, Feedback, Observation, Tick

UNDER_WAY_S = 120.0
"""Seconds after an erasure in which facts about its subject are stored without texts: more than a turn waits
for its draw."""


class Scope(StrEnum):
    """What was erased."""

    USER = "user"
    EPISODE = "episode"
    DECISION = "decision"
    AGE = "age"


def subject_digest(secret: str, scope: Scope, name: str) -> str:
    """Return the hash of the subject of an erasure.

    Args:
        secret: That of the draws.
        scope: What the subject is.
        name: Hash of a user, or id of an episode or a decision in the log.
    """
    about = json.dumps(["erased", scope, name]).encode()
    return hmac.new(secret.encode(), about, hashlib.sha256).hexdigest()


@dataclass(frozen=True, slots=True)
class UnderWay:
    """The erasures that turns from before may still be under way of.

    Attributes:
        numbers: Number of each erasure, by the hash of its subject.
        secret: That of the draws.
    """

    numbers: Mapping[str, int] = field(default_factory=dict)
    secret: str = field(default="", repr=False)

    def erasure_of(self, fact: Decision | Execution | Feedback | Observation | Tick) -> int | None:
        """Return the number of the erasure that reaches a decision or feedback; None for none."""
        if not self.numbers:
            return None
        digests = (subject_digest(self.secret, scope, name) for scope, name in _subjects(fact))
        return next((self.numbers[one] for one in digests if one in self.numbers), None)


def _subjects(fact: object) -> Iterator[tuple[Scope, str]]:
    match fact:
        case Decision(id=name, episode_id=episode, user_digest=user):
            pass
        case Feedback(decision_id=name, episode_id=episode):
            user = None
        case _:
            return
    named = (Scope.DECISION, name), (Scope.EPISODE, episode), (Scope.USER, user)
    yield from ((scope, one) for scope, one in named if one is not None)
