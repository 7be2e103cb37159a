"""Kind -> policy: what a configuration may ask for."""

import inspect
from collections.abc import Callable, Mapping, Sequence

from pydantic import Field, ValidationError

from agent.policies.base import Fixed, Policy, PolicyError, Uniform
from agent.policies.epsilon_greedy import EpsilonGreedy
from agent.policies.linear import LinearThompson, LinUCB
from agent.policies.neural import NeuralGreedy
from agent.policies.router import Routed
from agent.policies.shadow import ShadowPolicy
from agent.policies.vowpal import VowpalPolicy
from agent.spec import Spec, build, lines
from arms.suggestions import did_you_mean

POLICIES: Mapping[str, Callable[..., Policy]] = {
    policy.kind: policy
    for policy in (
        Uniform,
        Fixed,
        EpsilonGreedy,
        VowpalPolicy,
        LinUCB,
        LinearThompson,
        NeuralGreedy,
        Routed,
        ShadowPolicy,
    )
}
"""Every policy by its kind. A new one is a class and its name in this list."""


class PolicySpec(Spec):
    """A policy as data: a kind of the catalogue, and the arguments of its class."""

    kind: str = Field(description=f"One of {', '.join(POLICIES)}")


def build_policy(spec: PolicySpec, arms: Sequence[str]) -> Policy:
    """Build a policy without a history.

    Args:
        spec: What to build; where a class takes policies, `kind` and `params` stand for each.
        arms: Names of the arms that it will choose among.

    Raises:
        PolicyError: An unknown kind, parameter or arm, or a value that the policy refuses.

    >>> build_policy(PolicySpec(kind="fixed", params={"arm": "bm25"}), ["bm25", "none"]).kind
    'fixed'
    """
    if spec.kind == ShadowPolicy.kind:
        inner = {name: _inner(name, told, arms) for name, told in spec.params.items() if name in INNER}
        spec = spec.model_copy(update={"params": {**spec.params, **inner}})
    policy = build(spec, "policy", POLICIES, PolicyError)
    if isinstance(policy, Fixed) and policy.arm not in arms:
        raise PolicyError(f"policy 'fixed' names the arm {policy.arm!r}{did_you_mean(policy.arm, arms)}")
    return policy


INNER = tuple(inspect.signature(ShadowPolicy).parameters)
"""Parameters of an apprentice that are policies themselves."""


def _inner(name: str, told: object, arms: Sequence[str]) -> Policy:
    """Build a policy that is a parameter of another one. Raises PolicyError, naming the parameter."""
    if not isinstance(told, Mapping):
        raise PolicyError(
            f"policy.params.{name}: `kind` and `params` of a policy were expected, got {told!r}"
        )
    try:
        return build_policy(PolicySpec.model_validate(told), arms)
    except ValidationError as error:
        raise PolicyError(
            "\n".join(f"policy.params.{name}: {line}" for line in lines(error, PolicySpec))
        ) from None
    except PolicyError as error:
        raise PolicyError(f"policy.params.{name}: {error}") from error
