"""The catalogue of policies: every kind that can be named, and how a specification becomes a policy.

A kind is a class with an attribute `kind` in a module of this package, or one that an installed package
registers under the entry point group `armwise.policies`, by the name of its kind:

    [project.entry-points."armwise.policies"]
    mean_softmax = "their_package:MeanSoftmax"

`armwise.agent.policies.base.Policy` describes the further members of a class that the catalogue reads.
"""

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from armwise.agent.policies.base import Policy, PolicyError
from armwise.agent.spec import ClassCatalogue, Spec, build
from armwise.arms.suggestions import did_you_mean

GROUP = "armwise.policies"
"""Entry point group of policies of other packages."""


POLICIES: ClassCatalogue[Policy] = ClassCatalogue(["armwise.agent.policies"], GROUP, "policy", PolicyError)
"""Every policy by its kind; libraries are loaded when a policy is built."""


class PolicySpec(Spec):
    """A kind of policy and its parameters."""

    kind: str = Field(description="Name of a policy kind.")

    catalogue = POLICIES


def build_policy(spec: PolicySpec, arms: Sequence[str]) -> Policy:
    """Build a policy that has learned nothing yet.

    Args:
        spec: Kind and parameters.
        arms: Names of the arms to choose among.

    Raises:
        PolicyError: An unknown kind, parameter or arm, or a value that the policy refuses.

    >>> build_policy(PolicySpec(kind="fixed", params={"arm": "bm25"}), ["bm25", "none"]).kind
    'fixed'
    """
    policy = build(spec, "policy", POLICIES, PolicyError)
    if check_arms := getattr(policy, "check_arms", None):
        check_arms(arms)
    return policy


def check_untrusted(spec: PolicySpec, configured: PolicySpec) -> None:
    """Check that a policy from a request cannot import code or open a file on this machine.

    Only the configuration may name files. Other errors surface when the policy is built.

    Args:
        spec: Specification from the request.
        configured: The policy of the configuration, which is trusted.

    Raises:
        PolicyError: An unknown kind, a model that is not allowed, or a parameter that may name a file.
    """
    if spec.kind not in POLICIES:
        raise PolicyError(f"no policy of kind {spec.kind!r}{did_you_mean(spec.kind, POLICIES)}")
    check: Any = getattr(POLICIES[spec.kind], "check_untrusted", None)
    if check is not None:
        check(spec.params, spec == configured)
    elif spec != configured:
        raise PolicyError(f"only the configuration can name policy {spec.kind!r}")
