"""Check a policy specification from an HTTP request: it may name neither code nor a file of this machine.

The configuration may name files. A request may not: its policy is built from plain parameters alone.
"""

from collections.abc import Iterator

from pydantic import ValidationError

from agent.policies.base import PolicyError
from agent.policies.catalog import NESTED_PARAMS, POLICIES, PolicySpec
from agent.policies.epsilon_greedy import LINEAR, EpsilonGreedy, check_model
from agent.policies.neural import NeuralGreedy
from agent.policies.shadow import ShadowPolicy
from agent.policies.vowpal import EXACT_FLAGS, VowpalPolicy
from arms.suggestions import did_you_mean

FLAGS_WITHOUT_FILES = {*EXACT_FLAGS.split(), "--cover", "--bag", "--nounif"}
"""VW options that neither read nor write a file."""


def check_untrusted(spec: PolicySpec, configured: PolicySpec) -> None:
    """Refuse a specification that could import code or open a file. Other errors surface when it is built.

    Args:
        spec: From the request; policies nested in it are checked too.
        configured: The policy of the configuration, whose parts are trusted.

    Raises:
        PolicyError: An unknown kind, a model that is not allowed, or a parameter that may name a file.
    """
    trusted = list(_parts(configured))
    for part in _parts(spec):
        if part.kind not in POLICIES:
            raise PolicyError(f"no policy of kind {part.kind!r}{did_you_mean(part.kind, POLICIES)}")
        if part.kind == EpsilonGreedy.kind:
            check_model(part.params.get("model", LINEAR), part.params.get("params"))
        if part not in trusted and (parameter := _file_of(part)):
            raise PolicyError(
                f"{parameter} may name a file of the service's machine; only the configuration may name one"
            )


def _parts(spec: PolicySpec) -> Iterator[PolicySpec]:
    """Yield a policy specification and those nested in it."""
    yield spec
    for name in NESTED_PARAMS if spec.kind == ShadowPolicy.kind else ():
        try:
            inner = PolicySpec.model_validate(spec.params.get(name))
        except ValidationError:  # not a specification: building it raises the error
            continue
        yield from _parts(inner)


def _file_of(spec: PolicySpec) -> str:
    """Return the parameter of a policy that may name a file; empty if there is none.

    >>> _file_of(PolicySpec(kind="vowpal", params={"args": "--cb_explore_adf -q sa --bag 3"}))
    ''
    >>> _file_of(PolicySpec(kind="vowpal", params={"args": "--cb_explore_adf -p /etc/motd"}))
    "vw argument '-p'"
    >>> _file_of(PolicySpec(kind="neural", params={"encoder": "/etc"}))
    "encoder '/etc'"
    """
    if spec.kind == NeuralGreedy.kind and spec.params.get("encoder") is not None:
        return f"encoder {spec.params['encoder']!r}"
    if spec.kind == VowpalPolicy.kind:
        args = spec.params.get("args", "")
        if not isinstance(args, str):
            return "vw arguments that are no text"
        for token in args.replace("'", " ").replace('"', " ").split():
            option = token.partition("=")[0] if token.startswith("--") else token[:2]
            if option.startswith("-") and not option[1:].isdigit() and option not in FLAGS_WITHOUT_FILES:
                return f"vw argument {option!r}"
    return ""
