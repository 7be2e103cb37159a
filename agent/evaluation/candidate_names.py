"""Names of candidates, as a request and the command line write them."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import yaml
from pydantic import ValidationError

from armwise.agent.policies import POLICIES, PolicySpec
from armwise.agent.spec import lines


class EvaluationError(ValueError):
    """An evaluation is impossible; the message says why."""


class DoubtfulLogError(EvaluationError):
    """Nothing can be estimated from the log; the message says why."""


class CandidateError(EvaluationError):
    """A candidate is unknown, or cannot be evaluated on this log; the message says what can."""


class CandidateKind(StrEnum):
    """The kinds of candidates; a name is a kind, followed by `:` and its argument if it takes one."""

    SERVED = "served"
    """The logging policy."""
    UNIFORM = "uniform"
    """The uniform distribution over the eligible arms."""
    FIXED = "fixed"
    """Always one arm."""
    CONFIGURED = "configured"
    """The policy of the configuration, learned as the log is replayed."""
    SHADOW = "shadow"
    """What the policy would have drawn from when another system decided, as logged."""
    VERSION = "version"
    """One version, frozen."""
    CANARY = "canary"
    """One version, frozen, on the decisions in which it took part as a canary."""
    RECIPE = "recipe"
    """The recipe of a version, learned as the log is replayed."""
    POLICY = "policy"
    """Any policy of the catalogue, learned as the log is replayed."""
    ROUTER = "router"
    """The best arm by the scores of a trained router."""


BASELINE = CandidateKind.SERVED.value

ARGUMENT = {
    CandidateKind.FIXED: "<arm>",
    CandidateKind.VERSION: "<n>",
    CandidateKind.CANARY: "<n>",
    CandidateKind.RECIPE: "<n>",
    CandidateKind.POLICY: "<YAML>",
    CandidateKind.ROUTER: "<folder>",
}

DEEPEST = 20
"""Most levels of nesting in the YAML of a policy."""

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

CANDIDATE_NAMES = tuple(
    f"{kind}:{ARGUMENT[kind]}" if kind in ARGUMENT else str(kind) for kind in CandidateKind
)
"""The forms of a name."""


@dataclass(frozen=True, slots=True)
class CandidateName:
    """The parsed name of a candidate.

    Attributes:
        name: The name in the request.
        kind: Kind of the candidate.
        argument: Text after the `:`; empty if there is none.
        number: Number of the version; 0 for other kinds.
        policy: The policy, for `policy:<YAML>`.
    """

    name: str
    kind: CandidateKind
    argument: str = ""
    number: int = 0
    policy: PolicySpec | None = None


def parse_name(name: str) -> CandidateName:
    """Parse the name of a candidate.

    Raises:
        CandidateError: The name has another form.

    >>> parse_name("version:7").number
    7
    >>> parse_name("best")
    Traceback (most recent call last):
    armwise.agent.evaluation.candidate_names.CandidateError: candidate 'best' is not one of: served, \
uniform, fixed:<arm>, configured, shadow, version:<n>, canary:<n>, recipe:<n>, policy:<YAML>, router:<folder>
    """
    prefix, _, argument = name.partition(":")
    if prefix not in list(CandidateKind) or (CandidateKind(prefix) in ARGUMENT) != bool(argument.strip()):
        hint = f"; did you mean 'policy:{{kind: {name}}}'?" if name in POLICIES else ""
        raise CandidateError(f"candidate {name!r} is not one of: {', '.join(CANDIDATE_NAMES)}{hint}")
    kind = CandidateKind(prefix)
    if kind in (CandidateKind.VERSION, CandidateKind.CANARY, CandidateKind.RECIPE):
        if not argument.isdecimal() or int(argument) < 1:
            raise CandidateError(f"candidate {name!r} names no version: expected a whole number from 1 on")
        return CandidateName(name, kind, argument, number=int(argument))
    policy = _policy(argument) if kind is CandidateKind.POLICY else None
    return CandidateName(name, kind, argument, policy=policy)


def spell_out(name: str) -> str:
    """Return the name of a candidate, with the file of a policy replaced by its contents.

    For the command line only, so that names from the network cannot read files of this machine.

    Raises:
        CandidateError: The file cannot be read.

    >>> spell_out("policy:{kind: uniform}")
    'policy:{kind: uniform}'
    """
    kind, _, argument = name.partition(":")
    if kind != CandidateKind.POLICY or argument.lstrip().startswith("{"):
        return name
    try:
        document = yaml.safe_load(Path(argument).expanduser().read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise CandidateError(f"candidate {name!r}: {error}") from None
    if isinstance(document, dict) and document.keys() == {"policy"}:
        document = document["policy"]
    flow = yaml.safe_dump(document, default_flow_style=True, sort_keys=False, width=10_000)
    return f"policy:{flow.strip()}"


def _policy(text: str) -> PolicySpec:
    """Parse a policy in YAML. Raises CandidateError."""
    try:
        document = _read(text)
    except (yaml.YAMLError, ValueError) as error:
        raise CandidateError(f"policy {text!r} is not valid YAML: {error}") from None
    try:
        return PolicySpec.model_validate(document)
    except ValidationError as error:
        problems = "; ".join(lines(error, PolicySpec))
        raise CandidateError(
            f"policy {text!r}: {problems}; "
            "expected something like policy:{kind: linucb, params: {alpha: 0.5}}"
        ) from None


def _read(text: str) -> object:
    """Parse YAML; aliases and deep nesting, which could use much memory, are refused.

    Raises:
        YAMLError: It is malformed.
        ValueError: It has an alias, is nested too deeply, or has an invalid value.

    >>> _read("{kind: &a uniform, params: {again: *a}}")
    Traceback (most recent call last):
    ValueError: *a is an alias: write its contents out instead
    """
    depth = 0
    for event in yaml.parse(text, _LOADER):
        match event:
            case yaml.AliasEvent():
                raise ValueError(f"*{event.anchor} is an alias: write its contents out instead")
            case yaml.CollectionStartEvent():
                depth += 1
            case yaml.CollectionEndEvent():
                depth -= 1
        if depth > DEEPEST:
            raise ValueError(f"it has more than {DEEPEST} levels")
    return yaml.load(text, _LOADER)  # a safe loader, by another name # nosec B506
