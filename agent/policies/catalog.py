"""Kind -> policy: what a configuration may ask for."""

from collections.abc import Callable, Mapping, Sequence

from pydantic import Field

from agent.policies.greedy import EpsilonGreedy
from agent.policies.linear import LinearThompson, LinUCB
from agent.policies.neural import NeuralGreedy
from agent.policies.routed import Routed
from agent.policies.vowpal import VowpalPolicy
from agent.policy import Fixed, Policy, PolicyError, Uniform
from agent.specs import Spec, build
from arms.nearest import nearest

POLICIES: Mapping[str, Callable[..., Policy]] = {
    policy.kind: policy
    for policy in (Uniform, Fixed, EpsilonGreedy, VowpalPolicy, LinUCB, LinearThompson, NeuralGreedy, Routed)
}
"""Every policy by its kind. A new one is a class and its name in this line."""


class PolicySpec(Spec):
    """A policy as data: a kind of the catalogue, and the arguments of its class."""

    kind: str = Field(description=f"One of {', '.join(POLICIES)}")


def build_policy(spec: PolicySpec, arms: Sequence[str]) -> Policy:
    """Build a policy without a history.

    Args:
        spec: What to build.
        arms: Names of the arms that it will choose among.

    Raises:
        PolicyError: An unknown kind, parameter or arm, or a value that the policy refuses.

    >>> build_policy(PolicySpec(kind="fixed", params={"arm": "bm25"}), ["bm25", "none"]).kind
    'fixed'
    """
    policy = build(spec, "policy", POLICIES, PolicyError)
    if isinstance(policy, Fixed) and policy.arm not in arms:
        raise PolicyError(f"policy 'fixed' names the arm {policy.arm!r}{nearest(policy.arm, arms)}")
    return policy
