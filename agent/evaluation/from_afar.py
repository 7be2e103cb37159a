"""What a caller over HTTP may have evaluated: what there is, no code, and no file of the machine.

Whoever starts `armwise replay` may read files anyway. Whoever speaks HTTP may be anywhere: a policy that is
sent is built of parameters alone, and a router lies where the configuration keeps its own things.
"""

from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from agent.config import AppConfig
from agent.evaluation.names import CandidateError, Kind, Named, named
from agent.evaluation.request import EvaluationRequest
from agent.policies.apprentice import Apprentice
from agent.policies.catalog import INNER, POLICIES, PolicySpec
from agent.policies.greedy import LINEAR, EpsilonGreedy, check_model
from agent.policies.neural import NeuralGreedy
from agent.policies.vowpal import EXACT_FLAGS, VowpalPolicy
from agent.policy import PolicyError
from agent.schemas import LARGEST
from arms.nearest import nearest
from feedback.armsets import defined
from feedback.store import Store
from feedback.versions import find

FILELESS = {*EXACT_FLAGS.split(), "--cover", "--bag", "--nounif"}
"""Options of VW that read and write no file."""


def refuse_from_afar(request: EvaluationRequest, config: AppConfig, store: Store) -> None:
    """Refuse a request that cannot be answered, or that a caller over HTTP may not make.

    Args:
        request: What is asked for.
        config: The settled configuration, with the arms that are live.
        store: The log.

    Raises:
        CandidateError: A version, an arm or a kind of policy that there is not, a model of a policy that is
            not allowed, a file.
        LogUnavailableError: Try again later.
    """
    arms = {name for name, arm in defined(store).items() if arm.get("action", True)} | config.actions.keys()
    for name in dict.fromkeys((*request.candidates, request.baseline)):
        candidate = named(name)
        match candidate.kind:
            case Kind.FIXED if candidate.argument not in arms:
                raise CandidateError(f"candidate {name!r} names no arm{nearest(candidate.argument, arms)}")
            case Kind.VERSION | Kind.RECIPE if not _is_version(store, candidate.number):
                raise CandidateError(f"candidate {name!r}: there is no version {candidate.number}")
            case Kind.POLICY:
                _refuse_policy(candidate, config)
            case Kind.ROUTER:
                _refuse_router(candidate, config)


def _is_version(store: Store, number: int) -> bool:
    return number <= LARGEST and find(store, number) is not None


def _refuse_policy(candidate: Named, config: AppConfig) -> None:
    """Refuse an unknown kind, a model that is not allowed, and what may name a file.

    What else is wrong is found when it is built.
    """
    assert candidate.policy is not None
    configured = list(_parts(config.policy))
    for part in _parts(candidate.policy):
        if part.kind not in POLICIES:
            hint = nearest(part.kind, POLICIES)
            raise CandidateError(f"candidate {candidate.name!r}: no policy of kind {part.kind!r}{hint}")
        if part.kind == EpsilonGreedy.kind:
            try:
                check_model(part.params.get("model", LINEAR), part.params.get("params"))
            except PolicyError as error:
                raise CandidateError(f"candidate {candidate.name!r}: {error}") from None
        if part not in configured and (said := _file_of(part)):
            raise CandidateError(
                f"candidate {candidate.name!r}: {said} may name a file of the service's machine, which only "
                "its configuration may"
            )


def _parts(spec: PolicySpec) -> Iterator[PolicySpec]:
    """Yield a policy, and those that it is made of."""
    yield spec
    for name in INNER if spec.kind == Apprentice.kind else ():
        try:
            inner = PolicySpec.model_validate(spec.params.get(name))
        except ValidationError:  # no policy at all
            continue
        yield from _parts(inner)


def _file_of(spec: PolicySpec) -> str:
    """Return the parameter of a policy that may name a file; empty for none.

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
            if option.startswith("-") and not option[1:].isdigit() and option not in FILELESS:
                return f"vw argument {option!r}"
    return ""


def _refuse_router(candidate: Named, config: AppConfig) -> None:
    folder = Path(candidate.argument).resolve()
    own = config.router is not None and folder == config.router.path.resolve()
    if not own and config.home_path.resolve() not in folder.parents:
        raise CandidateError(
            f"candidate {candidate.name!r}: only the configured router, and those below the folder of the "
            "service, can be asked for over HTTP"
        )


__all__ = ["refuse_from_afar"]
