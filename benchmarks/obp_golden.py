"""Print what obp says of a few invented logs, to be frozen and compared with ours.

    python3.9 -m venv /tmp/obp
    /tmp/obp/bin/pip install obp==0.5.7 "matplotlib<3.9"
    /tmp/obp/bin/python benchmarks/obp_golden.py > tests/comparison/golden/obp.json

obp 0.5.7 needs a Python below 3.10, hence the environment of its own; matplotlib is held
back for the seaborn that obp pins. The logs are invented by `invent`, which
`tests/comparison/test_obp.py` calls too: it draws nothing but uniform numbers, and the
frozen values carry the sum of all arrays, so that another stream of numbers would be
noticed.
"""

import json
from dataclasses import asdict, dataclass

import numpy as np

CLIPS = [0.5, 1.0, 2.0, 5.0, float("inf")]
"""Clips of the weights, and thresholds to switch at."""


@dataclass(frozen=True)
class Case:
    """How a log is invented.

    Attributes:
        seed: Source of all numbers.
        n: Rows.
        n_arms: Arms.
        sure: Whether the target always draws one arm in a row.
        alike: Whether the log draws all arms alike.
        binary: Whether rewards are 0 or 1; in [-1, 1] otherwise.
    """

    seed: int
    n: int
    n_arms: int
    sure: bool
    alike: bool
    binary: bool

    @property
    def name(self):
        """The case in a word."""
        target, log = ("sure" if self.sure else "soft"), ("uniform" if self.alike else "skewed")
        rewards = "binary" if self.binary else "real"
        return f"{self.n}x{self.n_arms}-{target}-{log}-{rewards}-{self.seed}"


CASES = [
    Case(seed, n, n_arms, sure, alike, binary)
    for seed, (n, n_arms) in enumerate([(20, 2), (300, 4), (2000, 10)])
    for sure, alike, binary in [
        (True, True, True),
        (True, False, False),
        (False, True, False),
        (False, False, True),
    ]
]


def invent(case):
    """Return the arrays of a case by name: propensity, drawn, reward, p_target and q_hat."""
    rng = np.random.default_rng(case.seed)
    rows, shape = np.arange(case.n), (case.n, case.n_arms)
    p_log = np.full(shape, 1.0) if case.alike else 0.02 + rng.random(shape) ** 3
    p_log /= p_log.sum(axis=1, keepdims=True)
    drawn = (p_log.cumsum(axis=1) < rng.random((case.n, 1))).sum(axis=1).clip(max=case.n_arms - 1)
    taste = rng.random(shape) ** 3
    p_target = np.eye(case.n_arms)[taste.argmax(axis=1)] if case.sure else taste
    p_target /= p_target.sum(axis=1, keepdims=True)
    quality = rng.random(shape)
    luck = rng.random(case.n)
    reward = (luck < quality[rows, drawn]).astype(float) if case.binary else quality[rows, drawn] - luck
    q_hat = 0.7 * quality + 0.3 * rng.random(shape)
    return {
        "propensity": p_log[rows, drawn],
        "drawn": drawn,
        "reward": reward,
        "p_target": p_target,
        "q_hat": q_hat,
    }


def checksum(arrays):
    """Return the sum of all numbers of a case."""
    return float(sum(array.sum() for array in arrays.values()))


def values(case):
    """Return what obp estimates and chooses on a case; it must be importable."""
    from obp import ope

    arrays = invent(case)
    rewards = {"reward": arrays["reward"]}
    draws = {"action": arrays["drawn"], "action_dist": arrays["p_target"][:, :, np.newaxis]}
    chances = {"pscore": arrays["propensity"]}
    model = {"estimated_rewards_by_reg_model": arrays["q_hat"][:, :, np.newaxis]}
    # Its tuning needs the positions of a slate of one to be spelt out.
    weighed = {**rewards, **draws, **chances, "position": np.zeros(case.n, dtype=int)}
    full = {**weighed, **model}
    predicted = {"action_dist": draws["action_dist"], **model}

    def value(estimator, inputs):
        return float(estimator.estimate_policy_value(**inputs))

    estimates = {
        "ips": value(ope.InverseProbabilityWeighting(), weighed),
        "snips": value(ope.SelfNormalizedInverseProbabilityWeighting(), weighed),
        "dm": value(ope.DirectMethod(), predicted),
        "dr": value(ope.DoublyRobust(), full),
        "switch_dr": [value(ope.SwitchDoublyRobust(lambda_=c), full) for c in CLIPS],
    }
    return {"case": asdict(case), "checksum": checksum(arrays), "values": estimates}


if __name__ == "__main__":
    print(json.dumps({case.name: values(case) for case in CASES}, indent=1))
