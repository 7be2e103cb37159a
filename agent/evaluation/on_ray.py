"""Replay blocks of a log in tasks of Ray, which may run on other machines."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from armwise.agent.evaluation.blocks import LogBlock, MapBlocks, ReplayedBlock
from armwise.agent.evaluation.candidate_names import EvaluationError
from armwise.arms import local_ray

IN_FLIGHT = 2
"""Blocks per processor that are replayed, or wait for one: few, since the results of all are in memory."""


@contextmanager
def map_on_ray() -> Iterator[MapBlocks]:
    """Join the cluster that RAY_ADDRESS names, or start a Ray on this machine; yield what maps blocks there.

    Raises:
        RayNotStartedError: The cluster does not answer, or Ray does not start here.
    """
    with local_ray.join_or_start():
        yield _map


def _map(replay: Callable[[LogBlock], ReplayedBlock], parts: Iterable[LogBlock]) -> Iterator[ReplayedBlock]:
    import ray  # here: it takes a second to load

    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    most = IN_FLIGHT * max(1, int(resources.get("CPU", 1)))
    task, stored, waiting = ray.remote(num_cpus=1)(_call), ray.put(replay), deque[Any]()
    try:
        for part in parts:
            if len(waiting) >= most:
                yield _take(waiting.popleft())
            waiting.append(task.remote(stored, part))
        while waiting:
            yield _take(waiting.popleft())
    finally:
        for reference in waiting:
            ray.cancel(reference)


def _call(replay: Callable[[LogBlock], ReplayedBlock], part: LogBlock) -> ReplayedBlock:
    return replay(part)


def _take(reference: Any) -> ReplayedBlock:
    """Return the result of a task, or raise its error as it would be raised here."""
    import ray
    from ray.exceptions import RayError, RayTaskError

    try:
        replayed: ReplayedBlock = ray.get(reference)
    except RayTaskError as error:
        raise error.cause from None
    except RayError as error:
        reason = str(error).strip().splitlines()[-1]
        raise EvaluationError(f"a task of Ray failed: {reason}; leave out --ray to replay here") from None
    return replayed
