"""The guard: a class of requests whose answers have surely become worse goes back to the reference arm.

    rated answer --> Z, by how much the reference is better than other arms, estimated without bias
    class        --> a capital that bets on Z; once it has grown by 1 / error, the fall is certain

For a rated answer of quality r, in [0, 1], to which the reference had the probability p:

    Z = (r - c) / p          if the reference was drawn
    Z = (c - r) / (1 - p)    if another arm was; c is the mean quality of the reference lately, known before

So Z compares answers of the same time: where all arms become worse together, no class goes back. As c is that
mean, Z hardly depends on how often users rate each arm. If a class loses no more than `-least` at any time,
each factor (1 + bet Z) / (1 + bet limit) has a mean of at most 1, as c and the bet are known before the draw.
So the capital ever reaches 1 / error with a probability of at most the error (Ville). The error is shared by
`MOST_CLASSES` classes.

The stake is placed bit by bit, one part at each answer, as a confidence sequence from the first answer on
would have to lose again what it gained while all was well: a class may fall after months.

Source: Waudby-Smith, Wu, Ramdas, Karampatziakis and Mineiro (2022), "Anytime-valid off-policy inference for
contextual bandits", for the bets; Shin, Ramdas and Rinaldo (2022), "E-detectors", for the parts of the stake.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator

from armwise.feedback.arrays import Floats
from armwise.feedback.texts import FORM, find_text
from armwise.number import Number

ERROR = 0.05
"""Largest probability that a class which did not fall ever goes back, all classes together."""

MOST_CLASSES = 20
"""Classes that are watched, by their first rated answer; the last place is shared by all further ones."""

OTHERS = "others"
"""Key of the classes that share a place."""

BETS = 2.0 ** -np.arange(1.5, 7.5, 0.5)
"""Bets as shares of the stake."""

MOST_LOST = 0.8
"""Largest part of a bet's capital that a bad answer of the reference may cost: the bet is lowered to that."""

EARLY = 200
"""Answers of a class at which half of the stake has been placed."""

LATELY = 1000.0
"""Answers of a class that its means are of, about."""

MOSTLY = 0.5
"""Probability of the reference from which on a class is not watched: other arms hardly serve it."""

COMPUTED = frozenset(("w", *(name.partition("=")[0] for name in FORM if "=" in name)))
"""Fields of features that are computed from the question."""


class GuardSpec(BaseModel):
    """A guard against an average that hides a class of requests whose answers became worse."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    reference: str = Field(
        description="Arm that a class of requests goes back to, such as the one that you used before."
    )
    by: str = Field(
        default="topic",
        min_length=1,
        max_length=100,
        pattern=r"^[^=]+$",
        description=(
            "Field of `agent.context` whose text is the class of a request. Requests without it form one "
            "class. The first 19 classes that get ratings are watched one by one, further ones together."
        ),
    )
    classes: tuple[str, ...] | None = Field(
        default=None,
        min_length=1,
        max_length=MOST_CLASSES - 2,
        description=(
            "The classes, if you know them: Armwise watches each of them, and treats requests with another "
            "text as requests without a class. Null means any text. List them unless your own server sends "
            "the field."
        ),
    )
    least: Number = Field(
        default=-5.0,
        ge=-50,
        lt=0,
        description=(
            "Difference in quality from the reference that you accept, in points of 100. A class goes back "
            "once the rated answers show with certainty that it lost more. The answers of all classes "
            "together raise a false alarm with a probability of at most 5 %."
        ),
    )
    share: Number = Field(
        default=0.1,
        gt=0,
        lt=0.5,
        description=(
            "Minimum share of each class that the reference answers, to compare with. A larger share finds "
            "a fall sooner, and costs that much of your savings."
        ),
    )

    @field_validator("by")
    @classmethod
    def _refuse_computed(cls, by: str) -> str:
        if by in COMPUTED:
            raise ValueError(
                f"{by!r} is computed from each question and names no class: name a field of `agent.context`, "
                f"other than {', '.join(sorted(COMPUTED))}"
            )
        return by

    def name(self, join: str) -> str:
        """Return what identifies a guard over a training log: another one begins anew."""
        document = json.dumps([self.reference, self.by, sorted(self.classes or ()), self.least, join])
        return hashlib.sha256(document.encode()).hexdigest()[:16]

    def find_class(self, features: Mapping[str, float]) -> str:
        """Return the class of a request by its features.

        >>> GuardSpec(reference="large", by="task").find_class({"w=tax": 1.0, "task=contracts": 1.0})
        'contracts'
        """
        found = find_text(features, self.by)
        return found if self.classes is None or found in self.classes else ""


def make_key(name: str) -> str:
    """Return what stands for a class in the log: callers may write anything into a context."""
    return hashlib.blake2b(name.encode(errors="replace"), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class Fall:
    """A class that goes back to the reference.

    Attributes:
        key: Key of the class, or `OTHERS`.
        name: The class; None: several share the place.
        reference: The arm.
        points: Mean quality of the rated answers of other arms lately, from 0 to 100.
        reference_points: That of the reference in the same class at the same time.
        rated: Rated answers of the class so far that could be compared.
        example_seq: Position of the training log at which it was certain.
        apart: Keys of the classes that have a place of their own, if it is of the others.
        at: When it was recorded, seconds since the epoch.
    """

    key: str
    name: str | None
    reference: str
    points: float
    reference_points: float
    rated: int
    example_seq: int
    apart: tuple[str, ...] = ()
    at: float = 0.0

    def __str__(self) -> str:
        return self.describe(named=True)

    def describe(self, *, named: bool) -> str:
        """Return a sentence; without its name for those who may not see what others ask."""
        what = {None: "All other classes", "": "Requests without a class"}.get(
            self.name, f"Class {self.name!r}"
        )
        return (
            f"{what if named else 'A class of requests'} went back to {self.reference}: rated answers of "
            f"other arms got {self.points:.0f} of 100 points, and {self.reference}'s answers got "
            f"{self.reference_points:.0f}."
        )


@dataclass(frozen=True, slots=True)
class Returned:
    """The classes that went back, in order."""

    falls: tuple[Fall, ...] = ()

    def find(self, name: str) -> Fall | None:
        """Return how a class went back; None: it did not."""
        if not self.falls:
            return None
        key = make_key(name)
        fallen = (
            fall for fall in self.falls if fall.key == key or (fall.key == OTHERS and key not in fall.apart)
        )
        return next(fallen, None)

    def has(self, name: str) -> bool:
        """Return whether a class went back."""
        return self.find(name) is not None


@dataclass(slots=True)
class WatchedClass:
    """What is known of a class.

    Attributes:
        rated: Rated answers that could be compared.
        capital: Capital of each bet, shape (n_bets,).
        others: Weighted sum and weight of the qualities of other arms lately.
        reference: The same of the reference.
    """

    rated: int = 0
    capital: Floats = field(default_factory=lambda: np.zeros(len(BETS)))
    others: tuple[float, float] = (0.0, 0.0)
    reference: tuple[float, float] = (0.5, 1.0)  # one imaginary answer

    def see(self, share: float, *, drawn: bool, quality: float, limit: float) -> bool:
        """Add a rated answer, and return whether the fall is certain.

        Args:
            share: Probability of the reference, below `MOSTLY`.
            drawn: Whether the reference was drawn.
            quality: Quality of the answer, in [0, 1].
            limit: Fall that is accepted, in (0, 1).
        """
        control = self.reference[0] / self.reference[1]
        bets = np.minimum(BETS, MOST_LOST * share / max(control, share))
        better = (quality - control) / (share if drawn else share - 1.0)
        self.capital += EARLY / ((self.rated + EARLY) * (self.rated + EARLY + 1.0))
        self.capital *= (1.0 + bets * better) / (1.0 + bets * limit)
        self.rated += 1
        self.reference = _add(self.reference, quality, drawn / share)
        self.others = _add(self.others, quality, (not drawn) / (1.0 - share))
        return bool(self.capital.mean() >= MOST_CLASSES / ERROR)


def _add(mean: tuple[float, float], value: float, weight: float) -> tuple[float, float]:
    kept = 1.0 - 1.0 / LATELY
    return kept * mean[0] + weight * value, kept * mean[1] + weight


@dataclass(slots=True)
class Guard:
    """Watches all classes, as a fold over rated answers.

    Attributes:
        spec: The settings.
        classes: What is known of each class, by key.
        back: Keys of the classes that went back, which are watched no more.
    """

    spec: GuardSpec
    classes: dict[str, WatchedClass] = field(default_factory=dict)
    back: set[str] = field(default_factory=set)

    def see(
        self, name: str, share: float, *, drawn: bool, quality: float, example_seq: int = 0
    ) -> Fall | None:
        """Add a rated answer; return the fall of its class if that is certain now.

        Args:
            name: The class.
            share: Probability of the reference in its draw.
            drawn: Whether the reference was drawn.
            quality: Quality of the answer, in [0, 1].
            example_seq: Position in the training log.
        """
        key = make_key(name)
        if key not in self.classes and len(self.classes) >= MOST_CLASSES - 1:
            key, name = OTHERS, ""
        if not 0.0 < share < MOSTLY or key in self.back:
            return None
        watched = self.classes.setdefault(key, WatchedClass())
        if not watched.see(share, drawn=drawn, quality=quality, limit=-self.spec.least / 100.0):
            return None
        self.back.add(key)
        others, reference = (100.0 * total / n for total, n in (watched.others, watched.reference))
        rest = key == OTHERS
        return Fall(
            key,
            None if rest else name,
            self.spec.reference,
            *(others, reference, watched.rated, example_seq),
            tuple(other for other in self.classes if other != OTHERS) if rest else (),
        )

    def document(self) -> dict[str, Any]:
        """Return its state as a JSON document."""
        classes = {
            key: [one.rated, one.capital.tolist(), one.others, one.reference]
            for key, one in self.classes.items()
        }
        return {"classes": classes, "back": sorted(self.back)}

    @classmethod
    def from_document(cls, spec: GuardSpec, document: Mapping[str, Any]) -> Self:
        """Return the guard that continues from a state."""
        classes = {
            key: WatchedClass(rated, np.array(capital), tuple(others), tuple(reference))
            for key, (rated, capital, others, reference) in document["classes"].items()
        }
        return cls(spec, classes, set(document["back"]))
