"""An empty log on each of the two databases, and facts to put into it."""

from collections.abc import Callable, Iterator

import pytest

from armwise.feedback.events import Context, Cost, Decision, Execution, Feedback, Mode, Status
from armwise.feedback.log import Store


@pytest.fixture
def url(log_url: str) -> str:
    """The URL of an empty log, on each of the two."""
    return log_url


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    store = Store(url)
    yield store
    store.close()


def decision(
    name: str, *, at: float = 100.0, wait_s: float = 60.0, mode: Mode = Mode.EXPLORE, digest: str = ""
) -> Decision:
    """A decision between two arms."""
    return Decision(
        id=name,
        context=Context(
            f"what is {name}?", {"w=what": 1.0}, (0.5, -0.5), {"a": {"steps": 0.0}, "b": {"steps": 1.0}}
        ),
        arms=("a", "b"),
        probabilities=(0.25, 0.75),
        drawn="b",
        policy="uniform",
        version=1,
        mode=mode,
        decided_at=at,
        deadline=at + wait_s,
        request_digest=digest,
    )


def execution(name: str, status: Status = Status.OK, steps: int = 1) -> Execution:
    """How a decision went."""
    stages = ({"arms": ["a"], "probability": 0.25}, {"arms": ["b"], "probability": 0.75})
    cost = Cost(steps, 10, 5, 0.01, 0.2, 0.0)
    return Execution(name, "b", status, cost, ("p1", "p2"), "an answer", "", 101.0, stages)


def value(
    name: str, metric: str = "right", number: float = 1.0, *, key: str | None = None, at: float = 105.0
) -> Feedback:
    """Feedback on a decision."""
    return Feedback(key or f"{name}:{metric}", name, metric, number, at, None, {"who": "test"})


Turn = Callable[..., None]


@pytest.fixture
def turn(store: Store) -> Turn:
    """Write a decision and its execution."""

    def write(name: str, **fields: object) -> None:
        status = fields.pop("status", Status.OK)
        assert isinstance(status, Status)
        store.append([decision(name, **fields), execution(name, status)])  # type: ignore[arg-type]

    return write
