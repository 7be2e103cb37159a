"""A log of judged turns, without a service that made them: what an evaluation reads."""

from contextlib import closing

import numpy as np

from armwise.agent.config import AppConfig
from armwise.feedback.events import Context, Cost, Decision, Execution, Feedback, Status
from armwise.feedback.log import Store
from armwise.feedback.training_log import Joiner, take_epoch

ARMS = ("none", "bm25", "dense")
RIGHT = {"none": 0.2, "bm25": 0.8, "dense": 0.4}
"""Probability that the thumb goes up, by arm."""


def judged_log(config: AppConfig, turns: int, seed: int = 0, start: float = 1000.0) -> None:
    """Write so many turns that were drawn evenly and judged, a second apart, and join them.

    No floor is on record, as of a log from elsewhere: their propensities cannot be computed again.
    """
    rng = np.random.default_rng(seed)
    with closing(Store(config.database_url, config.reward.join, lambda: start + turns)) as store:
        store.append([fact for n in range(turns) for fact in _turn(n, start + n, rng)])
        joiner = Joiner(store, config.reward, take_epoch(store, "test", start))
        joiner.advance(start + turns)
        while joiner.left:
            joiner.advance(start + turns)


def _turn(n: int, at: float, rng: np.random.Generator) -> tuple[Decision, Execution, Feedback]:
    drawn = ARMS[int(rng.integers(len(ARMS)))]
    name = f"judged-{n}"
    decision = Decision(
        id=name,
        context=Context(
            f"question {n % 20}?", {"w=question": 1.0}, (), {arm: {"steps": 1.0} for arm in ARMS}
        ),
        arms=ARMS,
        probabilities=(1 / 3,) * 3,
        drawn=drawn,
        policy="uniform",
        version=1,
        decided_at=at,
        deadline=at + 0.5,
    )
    execution = Execution(name, drawn, Status.OK, Cost(1, 10, 5, 0.01, 0.2, 0.0), ("p",), "a", "", at + 0.1)
    thumb = 1.0 if rng.random() < RIGHT[drawn] else -1.0
    return decision, execution, Feedback(f"{name}:thumb", name, "thumb", thumb, at + 0.2, None, {})
