"""Write a small log whose truth is known, and the configuration that goes with it.

    python examples/replay_log.py FOLDER [QUESTIONS]

Three arms answer questions that begin with who, when or where; which arm is right follows from that word,
nine times out of ten. The service takes `dense`, except for a little exploration.
"""

import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import yaml

from armwise.agent.config import load
from armwise.agent.learning import Learner, Recipe
from armwise.agent.policies import build_policy, choose, compute_served_distribution, describe, sampling
from armwise.feedback.events import Cost, Decision, Execution, Feedback, Status
from armwise.feedback.log import Store
from armwise.feedback.training_log import take_epoch

RIGHT = {"who": "bm25", "when": "dense", "where": "dense"}
STEPS = {"none": 0, "bm25": 1, "dense": 2}
CHANCE = 0.9
BEGIN = 1_767_225_600.0
"""The first of January 2026, UTC."""

EVERY_S, BATCH = 600.0, 50
"""Seconds between two questions, and questions between two versions."""

CONFIG = {
    "arms": {
        "none": {"kind": "none"},
        "bm25": {"kind": "bm25"},
        "dense": {"kind": "dense", "params": {"backbone": "tiny"}},
    },
    "backbones": {"tiny": {"model": "hashing:16"}},
    "llm": {"engine": "scripted"},
    "policy": {"kind": "fixed", "params": {"arm": "dense"}},
    "floor": 0.05,
    "reward": {"metrics": {"right": {"type": "boolean"}}, "cost_weight": 0.1},
}


def write(folder: Path, questions: int) -> Path:
    """Write a log and its configuration, and return the path of the latter."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "serve_config.yaml"
    args = {**CONFIG, "log_url": f"sqlite:///{(folder / 'log.db').absolute()}"}
    path.write_text(yaml.safe_dump({"applications": [{"name": "agent", "args": args}]}))
    config, rng = load(path), np.random.default_rng(0)
    arms = tuple(config.actions)
    policy = build_policy(config.policy, arms)
    with closing(Store(config.database_url, config.reward.join)) as store:
        salt = store.draw_secret.salt
        learner = Learner(store, Recipe.from_config(config), arms, take_epoch(store, "example", BEGIN))
        for first in range(0, questions, BATCH):
            version = learner.step()
            assert version is not None
            facts = []
            for number in range(first, min(first + BATCH, questions)):
                word, at = str(rng.choice(list(RIGHT))), BEGIN + EVERY_S * number
                context = describe(
                    f"{word} is number {number}?", config.features, arms={arm: {} for arm in arms}
                )
                p = compute_served_distribution(policy, context, arms, config.explores.among(len(arms)))
                name = f"d-{number}"
                drawn = arms[choose(p, sampling.uniform_from(name, salt, arms))]
                right = rng.random() < (CHANCE if drawn == RIGHT[word] else 1.0 - CHANCE)
                decision = Decision(
                    name,
                    context,
                    arms,
                    tuple(p.tolist()),
                    drawn,
                    policy.kind,
                    version.version,
                    decided_at=at,
                    deadline=at + config.reward.wait_s,
                    steps={"floor": {"least": config.explores.among(len(arms))}},
                )
                cost = Cost(steps=STEPS[drawn])
                facts += [
                    decision,
                    Execution(name, drawn, Status.OK, cost, finished_at=at + 1.0),
                    Feedback(f"{name}:f", name, "right", float(right), at + 2.0),
                ]
            store.append(facts)
        learner.step()
    return path


if __name__ == "__main__":
    sys.stdout.write(f"{write(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 2000)}\n")
