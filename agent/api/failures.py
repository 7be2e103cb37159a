"""Work in the background that fails, as the service shows it: from the folder of the run and from the log."""

from armwise.agent.background import Work, WorkFailure, read_failures
from armwise.agent.jobs import find_failed_digest, find_failed_run, plan_warm_start
from armwise.agent.serving import Replica


def failures_at(replica: Replica) -> list[WorkFailure]:
    """Return what fails. It reads the log, which blocks. Raises LogUnavailableError."""
    failures = read_failures()
    if replica.sources_away:
        failures.append(WorkFailure(Work.SOURCES, "; ".join(replica.sources_away), 1, None))
    if (outage := replica.outage.failure) is not None:
        return [*failures, outage]  # the others are in the log
    if replica.unread is not None and all(failure.work != Work.LEARNER for failure in failures):
        failures.append(WorkFailure(Work.LEARNER, replica.unread, 1, replica.clock()))
    if replica.config.warm_start is not None:

        def next_at() -> float | None:
            planned = plan_warm_start(replica)
            return None if planned is None else planned.at

        run = find_failed_run(replica.store, replica.versions.configured.digest, next_at)
        failures += [] if run is None else [run]
    if replica.config.digest is not None:
        digest = find_failed_digest(replica.store, replica.config.digest, replica.clock())
        failures += [] if digest is None else [digest]
    return failures
