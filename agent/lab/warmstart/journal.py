"""The journal of a run: each step is written to the log before the next one starts.

While it is open, it renews the lease of the run; a worker that lost the run stops before the next step.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any, Self

from armwise.feedback.errors import StoreError, describe_error
from armwise.feedback.log import Store
from armwise.feedback.registry import Run, jobs, promotions, runs

HEARTBEAT_S = jobs.LEASE_S / 6
"""Seconds between two renewals of the lease of a run."""


@dataclass(slots=True)
class Step:
    """A step of a run, as it is stored in the log.

    Attributes:
        name: Name of the step.
        at: Start, in seconds since the epoch.
        seconds: Duration.
        said: Result as text.
        found: Result as JSON.
    """

    name: str
    at: float
    seconds: float = 0.0
    said: str = ""
    found: dict[str, Any] = field(default_factory=dict)


class Journal:
    """Writes the progress of a run to the log.

    Args:
        store: The log.
        run: The claimed run.
        on_step: Called with each finished step.
        clock: Seconds since the epoch.
        heartbeat_s: Seconds between two renewals of the lease; None: another process renews it.

    Attributes:
        inputs: Inputs of the run; written with the next step.
        candidate: The version that it published.
        evaluation: Evaluation of the candidate.
        promoted: Whether the candidate was promoted, which ends the run.
    """

    def __init__(
        self,
        store: Store,
        run: Run,
        on_step: Callable[[Step], None],
        clock: Callable[[], float] = time.time,
        heartbeat_s: float | None = HEARTBEAT_S,
    ) -> None:
        self._store, self._run, self._on_step, self._clock = store, run, on_step, clock
        self._steps: list[Step] = []
        self._failed = ""
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        if heartbeat_s is not None:
            self._thread = threading.Thread(
                target=self._renew, args=(heartbeat_s,), name="journal", daemon=True
            )
        self._status: runs.RunState | None = None
        self.inputs: dict[str, Any] = {}
        self.candidate: int | None = None
        self.evaluation: int | None = None
        self.promoted = False

    def __enter__(self) -> Self:
        """Start to renew the lease."""
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Record how the run ended, if the log can be written."""
        del kind, trace
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        if self.promoted:
            return
        if error is None:
            assert self._status is not None  # set by `ends` before a run ends without an error
            runs.finish(self._store, self._run, self._status, self._clock())
            return
        with suppress(StoreError):  # the lease will expire, and the first error matters more
            message = describe_error(error) if isinstance(error, Exception) else type(error).__name__
            self.keep()
            runs.finish(
                self._store, self._run, runs.RunState.FAILED, self._clock(), f"{self._failed}{message}"
            )

    @contextmanager
    def step(self, name: str) -> Iterator[Step]:
        """Do a step; its results are written even if it fails.

        Raises:
            SupersededError: The run was abandoned meanwhile; this worker must stop.
        """
        self.keep()
        step = Step(name, self._clock())
        self._steps.append(step)
        started = time.monotonic()
        try:
            yield step
        except BaseException:
            self._failed = f"{name}: "
            raise
        finally:
            step.seconds = round(time.monotonic() - started, 3)
        self.keep()
        self._on_step(step)

    def keep(self) -> None:
        """Write the journal so far. Raises SupersededError if the run was abandoned meanwhile."""
        if not self.promoted:
            runs.save_progress(self._store, self._run, self._clock(), **self._describe())

    def promote(self, configured: str, promotion: promotions.Promotion, after: int) -> None:
        """End the run with a promotion, in one transaction.

        Args:
            configured: Digest of the configured recipe, under which the promotion holds.
            promotion: The promotion.
            after: Number of the last promotion that the run has read; 0: there was none.

        Raises:
            ChangedMeanwhileError: There is a newer promotion.
            SupersededError: The run was abandoned meanwhile.
        """
        self._steps[-1].seconds = round(promotion.at - self._steps[-1].at, 3)
        finished = promotions.FinishedRun(self._run, self._describe())
        promotions.record(self._store, configured, promotion, after=after, finished=finished)
        self.promoted = True

    @property
    def found_too_little(self) -> bool:
        """Whether a step found too little to learn from."""
        return any(runs.TOO_LITTLE in step.found for step in self._steps)

    def _describe(self) -> dict[str, Any]:
        return {
            "inputs": self.inputs,
            "steps": [asdict(step) for step in self._steps],
            "candidate": self.candidate,
            "evaluation": self.evaluation,
        }

    def ends(self, status: runs.RunState) -> None:
        """Set the final state of the run, which is recorded when the journal is closed."""
        self._status = status

    def _renew(self, heartbeat_s: float) -> None:
        while not self._closed.wait(heartbeat_s):
            with suppress(StoreError):  # the next step raises
                runs.renew(self._store, self._run, self._clock())
