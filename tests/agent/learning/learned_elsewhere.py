"""A log that another kernel of BLAS has served and learned.

    OPENBLAS_CORETYPE=Nehalem python -m tests.agent.learning.learned_elsewhere URL KIND

The kernel is that of OPENBLAS_CORETYPE, which OpenBLAS reads when it is loaded.
"""

import sys
from contextlib import closing

import numpy as np

from armwise.agent.learning.learner import Learner
from armwise.agent.learning.recipe import Recipe
from armwise.agent.learning.restore import restore_policy
from armwise.agent.policies import PolicySpec, choose, sampling, served_distribution
from armwise.feedback.events import Context, Cost, Decision, Execution, Feedback, Status
from armwise.feedback.log import Store
from armwise.feedback.registry import versions
from armwise.feedback.training_log import take_epoch
from tests.agent.learning.test_learner import ARMS, NOW, RULE

TURNS, EVERY = 200, 4
"""Turns, and after how many of them a version is published."""

DIMS = 48
"""Numbers of an embedding: so many that a product has several orders."""

FLOOR = 0.02

SALT = "salt"


def live(url: str, kind: str) -> None:
    """Serve and learn turns: each is drawn from the newest version, and rewarded."""
    with closing(Store(url, RULE.join)) as store:
        recipe, epoch = Recipe(PolicySpec(kind=kind), RULE), take_epoch(store, "test", NOW)
        learner = Learner(store, recipe, ARMS, epoch, clock=lambda: NOW + 1)
        learner.step()
        for number in range(TURNS):
            if number % EVERY == 0:
                learner.step()
                version = versions.latest(store)
                assert version is not None
                policy = restore_policy(store, version, RULE, ARMS)
            rng, name = np.random.default_rng(number), f"d-{number}"
            embedding = rng.normal(size=DIMS)
            embedding /= np.linalg.norm(embedding)
            context = Context("what?", {}, tuple(embedding.tolist()), {arm: {} for arm in ARMS})
            p = served_distribution(policy, context, ARMS, FLOOR)
            drawn = choose(p, sampling.uniform_from(name, SALT, ARMS))
            reward = float(np.clip(embedding[drawn] * 4.0 + rng.normal(scale=0.2), -1.0, 1.0))
            store.append(
                [
                    Decision(
                        id=name,
                        context=context,
                        arms=ARMS,
                        probabilities=tuple(p.tolist()),
                        drawn=ARMS[drawn],
                        policy=kind,
                        version=version.version,
                        decided_at=NOW,
                        deadline=NOW + 60,
                        floor=FLOOR,
                    ),
                    Execution(name, ARMS[drawn], Status.OK, Cost()),
                    Feedback(f"{name}:thumb", name, "thumb", reward, NOW),
                ]
            )
        learner.step()


if __name__ == "__main__":
    live(*sys.argv[1:])
