"""Time obp on the arrays in a folder; run by `benchmarks/estimators.py`, in obp's environment.

    /tmp/obp/bin/python benchmarks/obp_peer.py <folder> <resamples> <runs>

`benchmarks/obp_golden.py` says how the environment is made. Prints one JSON object: the
least processor time for six point estimates and for their intervals, seconds, and the
values.
"""

import json
import sys
import warnings
from pathlib import Path
from time import process_time

import numpy as np


def best_of(runs, call):
    """Return the least processor time of several runs, seconds, and the last answer."""
    times = []
    for _ in range(runs):
        start = process_time()
        answer = call()
        times.append(process_time() - start)
    return min(times), answer


def time_replay(log):
    """Return the processor time of a replay by LinUCB and its value by ips, seconds, and rewards learned."""
    from obp import ope
    from obp.policy import LinUCB
    from obp.simulator import replay

    n, n_arms = log["p_target"].shape
    feedback = {
        "n_rounds": n,
        "n_actions": n_arms,
        "context": log["context"],
        "action": log["drawn"],
        "reward": log["reward"],
        "pscore": log["propensity"],
        "position": np.zeros(n, dtype=int),
    }
    replay.tqdm = lambda rounds, **_: rounds  # it imports the module and calls that
    start = process_time()
    policy = LinUCB(dim=log["context"].shape[1], n_actions=n_arms, epsilon=0.0)
    chosen = replay.run_bandit_replay(bandit_feedback=feedback, policy=policy)
    estimator = ope.InverseProbabilityWeighting(estimator_name="ips")
    evaluation = ope.OffPolicyEvaluation(bandit_feedback=feedback, ope_estimators=[estimator])
    evaluation.estimate_policy_values(action_dist=chosen)
    taken, rounds = process_time() - start, np.arange(n)
    return {"replay_s": taken, "learned": int(chosen[rounds, log["drawn"], 0].sum())}


def main(folder, resamples, runs):
    """Print the times and values."""
    warnings.simplefilter("ignore")
    from obp import ope

    log = {path.stem: np.load(path) for path in Path(folder).glob("*.npy")}
    n, n_arms = log["p_target"].shape
    if "context" in log:
        print(json.dumps({**time_replay(log), "process_s": process_time()}))
        return
    feedback = {
        "n_rounds": n,
        "n_actions": n_arms,
        "context": np.zeros((n, 1)),
        "action": log["drawn"],
        "reward": log["reward"],
        "pscore": log["propensity"],
        "position": np.zeros(n, dtype=int),
    }
    estimators = [
        ope.InverseProbabilityWeighting(estimator_name="ips"),
        ope.SelfNormalizedInverseProbabilityWeighting(estimator_name="snips"),
        ope.DirectMethod(estimator_name="dm"),
        ope.DoublyRobust(estimator_name="dr"),
    ]
    evaluation = ope.OffPolicyEvaluation(bandit_feedback=feedback, ope_estimators=estimators)
    target = {
        "action_dist": log["p_target"][:, :, np.newaxis],
        "estimated_rewards_by_reg_model": log["q_hat"][:, :, np.newaxis],
    }
    points_s, values = best_of(int(runs), lambda: evaluation.estimate_policy_values(**target))
    intervals_s, _ = best_of(
        1,
        lambda: evaluation.estimate_intervals(**target, n_bootstrap_samples=int(resamples), random_state=0),
    )
    print(
        json.dumps(
            {
                "points_s": points_s,
                "intervals_s": intervals_s,
                "values": {name: float(value) for name, value in values.items()},
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
