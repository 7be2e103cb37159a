"""Work in the background that fails, as the service shows it: from the folder of the run and from the log."""

from armwise.agent.background import Work, WorkFailure, recorded
from armwise.agent.jobs import failed_run, planned_at
from armwise.agent.serving import DecisionPoint


def failures_at(point: DecisionPoint) -> list[WorkFailure]:
    """Return what fails at a decision point. It reads the log, which blocks. Raises LogUnavailableError."""
    failures = recorded(point.name)
    if (outage := point.outage.failure) is not None:
        return [*failures, outage]  # the others are in the log
    if point.unread is not None and all(failure.work != Work.LEARNER for failure in failures):
        failures.append(WorkFailure(Work.LEARNER, point.name, point.unread, 1, point.service.clock()))
    if point.config.warm_start is not None:

        def next_at() -> float | None:
            planned = planned_at(point)
            return None if planned is None else planned.at

        run = failed_run(point.store, point.versions.configured.digest, next_at, point.name)
        failures += [] if run is None else [run]
    return failures
