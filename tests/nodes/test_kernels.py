"""Machines of a cluster whose kernels of BLAS differ decide and learn what a third kernel computes again."""

import os
from contextlib import closing

import pytest

from armwise.agent.config import parse
from armwise.agent.learning import Recipe, rebuild
from armwise.agent.learning.arithmetic import arithmetic
from armwise.agent.learning.restore import restore_policy
from armwise.agent.learning.verify import verify
from armwise.agent.policies import Policy
from armwise.agent.proxy import haproxy_binary
from armwise.feedback.events import Mode
from armwise.feedback.log import Store
from armwise.feedback.registry import versions
from armwise.feedback.training_log import read_examples
from benchmarks.nodes_cluster import ARMS, HEAD, SECOND, Cluster
from benchmarks.nodes_machines import Network, NetworkError
from tests.postgres import running

ROWS, DECISIONS = 600, 100
"""Acknowledged rows to wait for, and decisions among them that are computed again at least."""

KERNELS = {HEAD: "Haswell", SECOND: "Nehalem", ARMS: "Sandybridge"}
"""The first two decide; the last two have the resource of the learner."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces of Linux take root"),
    pytest.mark.skipif(haproxy_binary() is None, reason="there is no HAProxy for this platform"),
    pytest.mark.skipif("openblas" not in arithmetic(), reason="numpy has another BLAS here"),
]


def test_what_machines_of_two_kernels_decide_and_learn_is_computed_again_here() -> None:
    policy = {"policy": {"kind": "linucb"}}
    try:
        with running() as server, Network() as network:
            machines = Cluster(server.fresh(), network, clients=2, changed=policy, kernels=KERNELS)
            with machines.running() as cluster:
                cluster.until(lambda: True if len(cluster.ledger) >= ROWS else None)
                cluster.quiet()
                config = parse(cluster.document)
            with closing(Store(config.database_url, config.reward.join)) as store:
                report = rebuild(store, config, lambda *_: None, every=True)
                assert report.sound, [one for one in report.compared if not one.equal]
                kept = versions.list_kept(store, Recipe.configured(config).digest)
                learned_by = {(version.arithmetic or "").partition(";")[0] for version in kept}
                assert learned_by <= {f"openblas {KERNELS[name]}" for name in (SECOND, ARMS)}
                policies: dict[int, Policy] = {}
                n_verified = 0
                for example in read_examples(store, config.reward.join):
                    decision = example.decision
                    if decision.mode is not Mode.EXPLORE:
                        continue
                    if decision.version not in policies:
                        version = versions.find(store, decision.version)
                        assert version is not None
                        policies[decision.version] = restore_policy(
                            store, version, config.reward, list(config.actions)
                        )
                    salt = store.draw_secret.salt(config.salt)
                    verification = verify(decision, policies[decision.version], salt)
                    assert verification.verified, verification.why
                    n_verified += 1
                assert n_verified >= DECISIONS
    except NetworkError as error:
        pytest.skip(f"no machines can be made here: {error}")
