"""Checks of imported examples whose fields have the right types."""

import math
from collections.abc import Iterator

from feedback.arrays import TOLERANCE
from feedback.clock import require_date
from feedback.events import Decision, Example


def problems(example: Example) -> Iterator[str]:
    """Yield the problems of an example, the worst first; each names the field and the value."""
    if example.seq < 1:
        yield f"seq is {example.seq}; positions begin with 1"
    yield from _misfits(example.decision)
    yield from unlikely(example.decision)
    yield from _out_of_range(example)
    yield from _not_finite(example)
    yield from _undated(example.decision)


def unlikely(d: Decision) -> Iterator[str]:
    """Yield the problems of the probabilities of a decision: one an arm, or that of the drawn arm alone.

    >>> from feedback.events import Context
    >>> next(unlikely(Decision("d", Context(""), ("a", "b"), (0.5, 0.4), "a", "uniform", 1)))
    'the probabilities sum to 0.9 and not to 1'
    """
    for arm, p in zip(d.arms, d.probabilities, strict=False):
        if not 0.0 <= p <= 1.0:
            yield f"the probability of arm {arm!r} is {p}; it must be in [0, 1]"
    if not d.propensity > 0.0:
        yield f"the probability of the drawn arm {d.drawn!r} is {d.propensity}; it must be above 0"
    total = math.fsum(d.probabilities)
    if abs(total - 1.0) > TOLERANCE and len(d.probabilities) == len(d.arms):
        yield f"the probabilities sum to {total:.9g} and not to 1"


def _misfits(d: Decision) -> Iterator[str]:
    if len(set(d.arms)) != len(d.arms):
        yield f"an arm occurs twice among {', '.join(d.arms)}"
    if d.drawn not in d.arms:
        yield f"decision.drawn {d.drawn!r} is none of the arms {', '.join(d.arms)}"
    alone = len(d.probabilities) == 1 and d.arms[:1] == (d.drawn,)
    if len(d.probabilities) != len(d.arms) and not alone:
        yield (
            f"decision.probabilities has {len(d.probabilities)} numbers for {len(d.arms)} arms; one an arm "
            "is right, or a single one where the drawn arm stands first"
        )
    if d.shadow and len(d.shadow) != len(d.arms):
        yield f"decision.shadow has {len(d.shadow)} numbers for {len(d.arms)} arms"
    if d.costs and len(d.costs) != len(d.arms):
        yield f"decision.costs has {len(d.costs)} numbers for {len(d.arms)} arms"


def _out_of_range(example: Example) -> Iterator[str]:
    d, cost = example.decision, example.cost
    if not 0.0 <= d.share < 1.0:
        yield f"decision.share is {d.share}; it must be in [0, 1)"
    if d.floor is not None and not 0.0 <= d.floor <= 1.0:
        yield f"decision.floor is {d.floor}; it must be in [0, 1]"
    for name, values in (("price", (d.price,)), ("costs", d.costs), ("cost_weight", (d.cost_weight or 0.0,))):
        for value in values:
            if not 0.0 <= value < math.inf:
                yield f"decision.{name} has {value}; it must be finite and not below 0"
    for name in cost.__slots__:
        if not 0.0 <= (spent := getattr(cost, name)) < math.inf:
            yield f"cost.{name} is {spent}; it must be finite and not below 0"


def _undated(d: Decision) -> Iterator[str]:
    try:
        require_date(d.decided_at)
    except ValueError as error:
        yield f"decision.decided_at is {d.decided_at}: {error}"


def _not_finite(example: Example) -> Iterator[str]:
    d, seen = example.decision, example.decision.context
    numbers = [
        ("metrics", example.metrics.values()),
        ("decision.decided_at and deadline", (d.decided_at, d.deadline)),
        ("decision.shadow", d.shadow),
        ("decision.candidate_scores", (d.candidate_scores or {}).values()),
        ("decision.context.features", seen.features.values()),
        ("decision.context.embedding", seen.embedding),
        *((f"decision.context.arms.{arm}", features.values()) for arm, features in seen.arms.items()),
    ]
    for name, values in numbers:
        if not all(map(math.isfinite, values)):
            yield f"{name} must be finite, got {next(value for value in values if not math.isfinite(value))}"
