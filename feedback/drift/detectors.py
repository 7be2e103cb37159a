"""How a change of the world is noticed: detectors of river, their settings, and what an alarm does."""

from collections import deque
from datetime import timedelta
from statistics import fmean
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from river import drift
from river.base import DriftDetector

RECENT = 32
"""Values that a change is told by."""

_DURATION = TypeAdapter(timedelta)


class Adwin(BaseModel):
    """A window that grows while its values agree, and is cut where two parts of it do not."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    delta: float = Field(
        default=0.01,
        gt=0,
        lt=1,
        description="Bound on how likely a look raises a false alarm; what was measured is far below.",
    )
    clock: int = Field(default=8, ge=1, description="Look at every so many values.")
    grace: int = Field(default=32, ge=1, description="Values before the first look.")

    def build(self) -> DriftDetector:
        """Return a detector that has seen nothing."""
        adwin: DriftDetector = drift.ADWIN(  # type: ignore[no-untyped-call]  # this class of river has no types
            delta=self.delta, clock=self.clock, grace_period=self.grace
        )
        return adwin


class PageHinkley(BaseModel):
    """A sum of differences to the mean, which goes far up or down once the mean has moved."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    delta: float = Field(default=0.05, ge=0, description="Differences that count as none.")
    threshold: float = Field(
        default=20.0, gt=0, description="How far the sum may go before there is an alarm."
    )
    alpha: float = Field(
        default=1.0, gt=0, le=1, description="Below 1 the sum forgets, and false alarms come in the long run."
    )
    grace: int = Field(default=32, ge=1, description="Values before the first look.")

    def build(self) -> DriftDetector:
        """Return a detector that has seen nothing."""
        return drift.PageHinkley(
            min_instances=self.grace, delta=self.delta, threshold=self.threshold, alpha=self.alpha
        )


class DriftSpec(BaseModel):
    """How a change of the world is noticed, and what is done then."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    detector: Literal["adwin", "page_hinkley"] = Field(
        default="adwin", description="Which one watches: adwin, page_hinkley."
    )
    adwin: Adwin = Adwin()
    page_hinkley: PageHinkley = PageHinkley()
    floor: float = Field(
        default=0.05, gt=0, lt=1, description="Least probability of every eligible arm after an alarm."
    )
    raised_for: str = Field(default="PT1H", description="ISO 8601 duration of that, from the alarm on.")

    @model_validator(mode="after")
    def _sound(self) -> "DriftSpec":
        if self.raised_s <= 0:
            raise ValueError(f"raised_for {self.raised_for!r} must be longer than zero")
        return self

    @property
    def raised_s(self) -> float:
        """Seconds for which an alarm raises the floor."""
        try:
            return float(_DURATION.validate_python(self.raised_for).total_seconds())
        except ValidationError:
            raise ValueError(f"raised_for {self.raised_for!r} is no ISO 8601 duration such as PT1H") from None

    def build(self) -> DriftDetector:
        """Return a detector that has seen nothing."""
        return (self.adwin if self.detector == "adwin" else self.page_hinkley).build()


class Stream:
    """A detector over one series of numbers, each beside what was expected of it."""

    __slots__ = ("_detector", "_n", "_recent", "_span", "_total")

    def __init__(self, spec: DriftSpec, span: float) -> None:
        self._detector = spec.build()
        self._span = span
        self._n, self._total = 0, 0.0
        self._recent: deque[tuple[float, float]] = deque(maxlen=RECENT)

    def see(self, value: float, expected: float = 0.0) -> tuple[float, float] | None:
        """Take in the next value; return how it would have been and is, where that has changed."""
        surprise = value - expected
        self._n += 1
        self._total += surprise
        self._recent.append((value, surprise))
        self._detector.update(surprise / self._span)
        if not self._detector.drift_detected:
            return None
        after, recently = (fmean(column) for column in zip(*self._recent, strict=True))
        k = len(self._recent)
        usually = (self._total - k * recently) / max(1, self._n - k)
        return after - recently + usually, after
