"""Drift detectors of river, their settings, and the effect of an alarm."""

from collections import deque
from datetime import timedelta
from statistics import fmean
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

if TYPE_CHECKING:
    from river.base import DriftDetector

RECENT = 32
"""Values whose mean is reported as the value after a change."""

_DURATION = TypeAdapter(timedelta)


class Adwin(BaseModel):
    """ADWIN: a window that grows while its values agree, and is cut where the means of two parts differ."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    delta: float = Field(
        default=0.01,
        gt=0,
        lt=1,
        description="Bound on the probability of a false alarm in one check; the measured rate is far below.",
    )
    clock: int = Field(default=8, ge=1, description="Values between two checks.")
    grace: int = Field(default=32, ge=1, description="Values before the first check.")

    def build(self) -> "DriftDetector":
        """Return a detector that has seen nothing."""
        from river import drift

        adwin: DriftDetector = drift.ADWIN(  # type: ignore[no-untyped-call]  # this class of river has no types
            delta=self.delta, clock=self.clock, grace_period=self.grace
        )
        return adwin


class PageHinkley(BaseModel):
    """Page-Hinkley: a cumulative sum of differences from the mean, which grows once the mean has moved."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    delta: float = Field(default=0.05, ge=0, description="Differences up to this size are ignored.")
    threshold: float = Field(default=20.0, gt=0, description="Size of the sum that raises an alarm.")
    alpha: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="Decay of the sum; below 1, false alarms become likely in the long run.",
    )
    grace: int = Field(default=32, ge=1, description="Values before the first check.")

    def build(self) -> "DriftDetector":
        """Return a detector that has seen nothing."""
        from river import drift

        return drift.PageHinkley(
            min_instances=self.grace, delta=self.delta, threshold=self.threshold, alpha=self.alpha
        )


class DriftSpec(BaseModel):
    """Settings of drift detection, and of what an alarm does."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    detector: Literal["adwin", "page_hinkley"] = Field(
        default="adwin", description="The detector: adwin, page_hinkley."
    )
    adwin: Adwin = Adwin()
    page_hinkley: PageHinkley = PageHinkley()
    floor: float = Field(
        default=0.05, gt=0, lt=1, description="Minimum probability of every eligible arm after an alarm."
    )
    raised_for: str = Field(
        default="PT1H", description="ISO 8601 duration for which an alarm raises the floor."
    )

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
            raise ValueError(
                f"raised_for {self.raised_for!r} is not an ISO 8601 duration: use PT1H"
            ) from None

    def build(self) -> "DriftDetector":
        """Return a detector that has seen nothing."""
        return (self.adwin if self.detector == "adwin" else self.page_hinkley).build()


class Stream:
    """A detector over the differences between the values of a series and their expectations."""

    __slots__ = ("_detector", "_n", "_recent", "_span", "_total")

    def __init__(self, spec: DriftSpec, span: float) -> None:
        self._detector = spec.build()
        self._span = span
        self._n, self._total = 0, 0.0
        self._recent: deque[tuple[float, float]] = deque(maxlen=RECENT)

    def see(self, value: float, expected: float = 0.0) -> tuple[float, float] | None:
        """Add the next value; return the expected and the actual recent mean if that has changed."""
        residual = value - expected
        self._n += 1
        self._total += residual
        self._recent.append((value, residual))
        self._detector.update(residual / self._span)
        if not self._detector.drift_detected:
            return None
        after, recent_residual = (fmean(column) for column in zip(*self._recent, strict=True))
        k = len(self._recent)
        earlier_residual = (self._total - k * recent_residual) / max(1, self._n - k)
        return after - recent_residual + earlier_residual, after
