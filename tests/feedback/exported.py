"""Examples to be carried out and in: a few by hand, and any that a log could hold."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from armwise.feedback.events import LABELS, Context, Cost, Decision, Example, Mode
from tests.steps import change, record

ARMS = ("bm25", "dense", "none")


def example(seq: int, drawn: str = "dense", reward: float = 1.0, **fields: Any) -> Example:
    """One draw among three arms, with a value of the metric `right`."""
    decision = Decision(
        id=f"d-{seq}",
        context=Context(
            f'which river is "{seq}"?',
            {"w=river": 1.0, "length": 0.125 * seq},
            (0.5, -0.25),
            {"bm25": {"steps": 1.0}, "dense": {"steps": 1.0, "score": 0.5}, "none": {}},
        ),
        arms=ARMS,
        probabilities=(0.25, 0.625, 0.125),
        drawn=drawn,
        policy="vowpal",
        version=3,
        decided_at=1_700_000_000.25 + seq,
        deadline=1_700_001_800.25 + seq,
        steps={"floor": {"least": 0.01}},
    )
    return Example(seq, change(decision, **fields), Cost(1, 100, 20, 0.05, 0.5, 0.001), {"right": reward})


numbers = st.floats(allow_nan=False, allow_infinity=False)
amounts = st.floats(0.0, 1e9)
names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)  # as a log
features = st.dictionaries(names, numbers, max_size=3)


@st.composite
def distributions(draw: st.DrawFn, n: int) -> tuple[float, ...]:
    """Probabilities of `n` arms, all above 0."""
    weights = np.array(draw(st.lists(st.floats(0.01, 1.0), min_size=n, max_size=n)))
    return tuple((weights / weights.sum()).tolist())


@st.composite
def any_example(draw: st.DrawFn) -> Example:
    """Whatever a training log could hold."""
    arms = tuple(draw(st.lists(names, min_size=1, max_size=4, unique=True)))
    at = draw(st.integers(0, len(arms) - 1))
    known = draw(st.booleans()) or len(arms) == 1
    if not known:
        arms, at = (arms[at], *arms[:at], *arms[at + 1 :]), 0
    decision = Decision(
        id=draw(names),
        context=Context(
            draw(st.text(max_size=20)),
            draw(features),
            tuple(draw(st.lists(numbers, max_size=3))),
            draw(st.dictionaries(st.sampled_from(arms), features, max_size=2)),
        ),
        arms=arms,
        probabilities=draw(distributions(len(arms))) if known else (draw(st.floats(1e-6, 1.0)),),
        drawn=arms[at],
        policy=draw(st.sampled_from(["vowpal", "uniform", LABELS])),
        version=draw(st.integers(0, 2**40)),
        mode=draw(st.sampled_from(Mode)),
        decided_at=draw(st.floats(0.0, 4e9)),
        deadline=draw(st.floats(0.0, 4e9)),
        episode_id=draw(st.none() | names),
        request_digest=draw(st.text(max_size=4)),
        deferred=draw(st.booleans()),
        steps=record(
            arms,
            floor=draw(st.none() | st.floats(0.0, 1.0)),
            shadow=draw(st.just(()) | distributions(len(arms))),
            candidate=draw(st.integers(0, 9)),
            share=draw(st.floats(0.0, 0.9)),
        ),
    )
    tokens = st.integers(0, 10**6)
    cost = Cost(draw(tokens), draw(tokens), draw(tokens), draw(amounts), draw(amounts), draw(amounts))
    return Example(draw(st.integers(1, 9)), decision, cost, draw(features), draw(st.booleans()))
