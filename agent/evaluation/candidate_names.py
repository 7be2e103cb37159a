"""The names of candidates of an evaluation."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import yaml
from pydantic import ValidationError

from agent.policies import PolicySpec
from agent.spec import lines


class EvaluationError(ValueError):
    """Nothing can be evaluated; the message says why."""


class CandidateError(EvaluationError):
    """A candidate is unknown, or cannot be evaluated on this log; the message says what would be right."""


class Kind(StrEnum):
    """The kinds of candidates; a name is one of these, with `:` and an argument where it takes one."""

    SERVED = "served"
    """The logging policy."""
    UNIFORM = "uniform"
    """The uniform distribution over the eligible arms."""
    FIXED = "fixed"
    """Always one arm."""
    CONFIGURED = "configured"
    """The policy of the configuration, learned as the log is replayed."""
    SHADOW = "shadow"
    """The shadow policy, as logged."""
    VERSION = "version"
    """One version, frozen."""
    RECIPE = "recipe"
    """The recipe of a version, learned as the log is replayed."""
    POLICY = "policy"
    """Any policy of the catalogue, learned as the log is replayed."""
    ROUTER = "router"
    """The best arm by the scores of a trained router."""


BASELINE = Kind.SERVED.value

ARGUMENT = {
    Kind.FIXED: "<arm>",
    Kind.VERSION: "<n>",
    Kind.RECIPE: "<n>",
    Kind.POLICY: "<YAML>",
    Kind.ROUTER: "<folder>",
}

DEEPEST = 20
"""Levels of nesting in the YAML of a policy; a policy that contains others takes two for each."""

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

NAMES = tuple(f"{kind}:{ARGUMENT[kind]}" if kind in ARGUMENT else str(kind) for kind in Kind)
"""The forms of a name."""


@dataclass(frozen=True, slots=True)
class CandidateName:
    """The parsed name of a candidate.

    Attributes:
        name: As it was given.
        kind: Which kind of candidate it is.
        argument: What follows the `:`; empty where nothing does.
        number: Number of the version; 0 for the other kinds.
        policy: Name of the policy; None for the other kinds.
    """

    name: str
    kind: Kind
    argument: str = ""
    number: int = 0
    policy: PolicySpec | None = None


def parse_name(name: str) -> CandidateName:
    """Parse the name of a candidate.

    Raises:
        CandidateError: It is not one.

    >>> parse_name("version:7").number
    7
    >>> parse_name("best")
    Traceback (most recent call last):
    agent.evaluation.candidate_names.CandidateError: candidate 'best' is none of: served, uniform, \
fixed:<arm>, configured, shadow, version:<n>, recipe:<n>, policy:<YAML>, router:<folder>
    """
    prefix, _, argument = name.partition(":")
    if prefix not in list(Kind) or (Kind(prefix) in ARGUMENT) != bool(argument.strip()):
        raise CandidateError(f"candidate {name!r} is none of: {', '.join(NAMES)}")
    kind = Kind(prefix)
    if kind in (Kind.VERSION, Kind.RECIPE):
        if not argument.isdecimal() or int(argument) < 1:
            raise CandidateError(
                f"candidate {name!r} names no version: a whole number from 1 on was expected"
            )
        return CandidateName(name, kind, argument, number=int(argument))
    return CandidateName(name, kind, argument, policy=_policy(argument) if kind is Kind.POLICY else None)


def spelled_out(name: str) -> str:
    """Return the name of a candidate, with the file of a policy replaced by its contents.

    For the command line only: names from the network must not read files of this machine.

    Raises:
        CandidateError: The file cannot be read.

    >>> spelled_out("policy:{kind: uniform}")
    'policy:{kind: uniform}'
    """
    kind, _, argument = name.partition(":")
    if kind != Kind.POLICY or argument.lstrip().startswith("{"):
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
        raise CandidateError(f"policy {text!r} is not YAML of a policy: {error}") from None
    try:
        return PolicySpec.model_validate(document)
    except ValidationError as error:
        problems = "; ".join(lines(error, PolicySpec))
        raise CandidateError(
            f"policy {text!r}: {problems}; "
            "such as policy:{kind: linucb, params: {alpha: 0.5}} was expected"
        ) from None


def _read(text: str) -> object:
    """Parse YAML without aliases and deep nesting, which could use much memory.

    Raises:
        YAMLError: It is not YAML.
        ValueError: It has an alias, is nested too deeply, or has an invalid value.

    >>> _read("{kind: &a uniform, params: {again: *a}}")
    Traceback (most recent call last):
    ValueError: *a stands for another part of it, which has to be written out
    """
    depth = 0
    for event in yaml.parse(text, _LOADER):
        match event:
            case yaml.AliasEvent():
                raise ValueError(
                    f"*{event.anchor} stands for another part of it, which has to be written out"
                )
            case yaml.CollectionStartEvent():
                depth += 1
            case yaml.CollectionEndEvent():
                depth -= 1
        if depth > DEEPEST:
            raise ValueError(f"it has more than {DEEPEST} levels")
    return yaml.load(text, _LOADER)  # a safe loader, by another name # nosec B506
