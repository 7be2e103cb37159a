"""The journal of a run: each step as it was done, on record before the next begins.

While it is open, its worker is heard of; whoever lost the run finds that out before the next step.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any, Self

from feedback.errors import StoreError, described
from feedback.log import Store
from feedback.registry import Run, promotions, runs

BEAT_S = runs.LEASE_S / 6
"""How often the worker of a run says that it is alive."""


@dataclass(slots=True)
class Step:
    """What was done.

    Attributes:
        name: Of the step.
        at: When it began, seconds since the epoch, UTC.
        seconds: How long it took.
        said: What came of it, in a sentence or more.
        found: The same for programs, as JSON can say it.
    """

    name: str
    at: float
    seconds: float = 0.0
    said: str = ""
    found: dict[str, Any] = field(default_factory=dict)


class Journal:
    """What is on record of a run that is under way.

    Args:
        store: The log.
        run: As it was taken.
        tell: Told of each step once it is done.
        clock: Seconds since the epoch.
        beat_s: Seconds between two words that its worker is alive; None where another process says so.

    Attributes:
        inputs: What the run follows from; kept with the next step.
        candidate: The version that it published.
        evaluation: Of that one.
        promoted: Whether that one was promoted, with which the run is at its end.
    """

    def __init__(
        self,
        store: Store,
        run: Run,
        tell: Callable[[Step], None],
        clock: Callable[[], float] = time.time,
        beat_s: float | None = BEAT_S,
    ) -> None:
        self._store, self._run, self._tell, self._clock = store, run, tell, clock
        self._steps: list[Step] = []
        self._failed = ""
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        if beat_s is not None:
            self._thread = threading.Thread(target=self._beat, args=(beat_s,), name="journal", daemon=True)
        self._status: runs.State | None = None
        self.inputs: dict[str, Any] = {}
        self.candidate: int | None = None
        self.evaluation: int | None = None
        self.promoted = False

    def __enter__(self) -> Self:
        """Begin to say that the worker is alive."""
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Record how the run ended, as far as the log can be written."""
        del kind, trace
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        if self.promoted:
            return
        if error is None:
            assert self._status is not None  # whoever ends without an error has said how
            runs.finish(self._store, self._run, self._status, self._clock())
            return
        with suppress(StoreError):  # it will be found dead, and what was raised counts more
            told = described(error) if isinstance(error, Exception) else type(error).__name__
            self.keep()
            runs.finish(self._store, self._run, runs.State.FAILED, self._clock(), f"{self._failed}{told}")

    @contextmanager
    def step(self, name: str) -> Iterator[Step]:
        """Do a step; what it says and finds is kept with it, even where it fails.

        Raises:
            SupersededError: The run was abandoned meanwhile: nothing more may be done for it.
        """
        self.keep()
        step = Step(name, self._clock())
        self._steps.append(step)
        begun = time.monotonic()
        try:
            yield step
        except BaseException:
            self._failed = f"{name}: "
            raise
        finally:
            step.seconds = round(time.monotonic() - begun, 3)
        self.keep()
        self._tell(step)

    def keep(self) -> None:
        """Write what is known. Raises SupersededError where the run was abandoned meanwhile."""
        if not self.promoted:
            runs.save_progress(self._store, self._run, self._clock(), **self._known())

    def promote(self, configured: str, said: promotions.Promotion, after: int) -> None:
        """End the run with a promotion: all of it is on record then, or nothing.

        Args:
            configured: Digest of the configured recipe, under which the promotion holds.
            said: The promotion.
            after: Number of the last word that the run knows of; 0 for none.

        Raises:
            ChangedMeanwhileError: Something was said since.
            SupersededError: The run was abandoned meanwhile.
        """
        self._steps[-1].seconds = round(said.at - self._steps[-1].at, 3)
        finished = promotions.Finished(self._run, self._known())
        promotions.record(self._store, configured, said, after=after, finished=finished)
        self.promoted = True

    def _known(self) -> dict[str, Any]:
        return {
            "inputs": self.inputs,
            "steps": [asdict(step) for step in self._steps],
            "candidate": self.candidate,
            "evaluation": self.evaluation,
        }

    def ends(self, status: runs.State) -> None:
        """Say how the run ends, which is recorded when the journal is closed."""
        self._status = status

    def _beat(self, beat_s: float) -> None:
        while not self._closed.wait(beat_s):
            with suppress(StoreError):  # the next step finds out
                runs.renew(self._store, self._run, self._clock())
