"""Kind -> policy: what a configuration may ask for."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from agent.policies.greedy import EpsilonGreedy
from agent.policies.vowpal import VowpalPolicy
from agent.policy import Fixed, Policy, PolicyError, Uniform
from arms.nearest import nearest

POLICIES: Mapping[str, Callable[..., Policy]] = {
    policy.kind: policy for policy in (Uniform, Fixed, EpsilonGreedy, VowpalPolicy)
}
"""Every policy by its kind. A new one is a class and its name in this line."""


class PolicySpec(BaseModel):
    """A policy as data: a kind of the catalogue, and the arguments of its class."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: str = Field(description="uniform, fixed, epsilon_greedy or vowpal")
    params: dict[str, Any] = Field(
        default_factory=dict, description="Arguments of the policy's class, by name"
    )


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
    if spec.kind not in POLICIES:
        raise PolicyError(f"no policy of kind {spec.kind!r}{nearest(spec.kind, POLICIES)}")
    build = POLICIES[spec.kind]
    known = [name for name in inspect.signature(build).parameters if not name.startswith("_")]
    for name in spec.params:
        if name not in known:
            raise PolicyError(f"policy {spec.kind!r} has no parameter {name!r}{nearest(name, known)}")
    try:
        policy = build(**spec.params)
    except TypeError as error:
        raise PolicyError(f"policy {spec.kind!r} cannot be built: {error}") from error
    if isinstance(policy, Fixed) and policy.arm not in arms:
        raise PolicyError(f"policy 'fixed' names the arm {policy.arm!r}{nearest(policy.arm, arms)}")
    return policy
