"""What candidates of an evaluation are called."""

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
    """What was drawn from when the log was written."""
    UNIFORM = "uniform"
    """Every eligible arm alike."""
    FIXED = "fixed"
    """Always one arm."""
    CONFIGURED = "configured"
    """The policy of the configuration, learned as the log is replayed."""
    SHADOW = "shadow"
    """The apprentice, as it is on record."""
    VERSION = "version"
    """One version, frozen."""
    RECIPE = "recipe"
    """The recipe of a version, learned as the log is replayed."""
    POLICY = "policy"
    """Any policy of the catalogue, likewise."""
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
"""Levels of a policy that is written out; one that is made of others takes two for each."""

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

NAMES = tuple(f"{kind}:{ARGUMENT[kind]}" if kind in ARGUMENT else str(kind) for kind in Kind)
"""How a candidate can be named."""


@dataclass(frozen=True, slots=True)
class Named:
    """The name of a candidate, understood.

    Attributes:
        name: As it was given.
        kind: Which kind of candidate it is.
        argument: What follows the `:`; empty where nothing does.
        number: Of a version; 0 for the other kinds.
        policy: Of a policy; None for the other kinds.
    """

    name: str
    kind: Kind
    argument: str = ""
    number: int = 0
    policy: PolicySpec | None = None


def named(name: str) -> Named:
    """Understand the name of a candidate.

    Raises:
        CandidateError: It is none.

    >>> named("version:7").number
    7
    >>> named("best")
    Traceback (most recent call last):
    agent.evaluation.candidate_names.CandidateError: candidate 'best' is none of: served, uniform, \
fixed:<arm>, configured, shadow, version:<n>, recipe:<n>, policy:<YAML>, router:<folder>
    """
    told, _, argument = name.partition(":")
    if told not in list(Kind) or (Kind(told) in ARGUMENT) != bool(argument.strip()):
        raise CandidateError(f"candidate {name!r} is none of: {', '.join(NAMES)}")
    kind = Kind(told)
    if kind in (Kind.VERSION, Kind.RECIPE):
        if not argument.isdecimal() or int(argument) < 1:
            raise CandidateError(
                f"candidate {name!r} names no version: a whole number from 1 on was expected"
            )
        return Named(name, kind, argument, number=int(argument))
    return Named(name, kind, argument, policy=_policy(argument) if kind is Kind.POLICY else None)


def spelled_out(name: str) -> str:
    """Return the name of a candidate with the file of a policy read into it; others as they are.

    Only whoever may read files of this machine is to be spared writing a policy out: a name that
    came over a network is taken as it is.

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
    """Read a policy that is written in YAML. Raises CandidateError."""
    try:
        document = _read(text)
    except (yaml.YAMLError, ValueError) as error:
        raise CandidateError(f"policy {text!r} is no YAML of a policy: {error}") from None
    try:
        return PolicySpec.model_validate(document)
    except ValidationError as error:
        said = "; ".join(lines(error, PolicySpec))
        raise CandidateError(
            f"policy {text!r}: {said}; such as policy:{{kind: linucb, params: {{alpha: 0.5}}}} was expected"
        ) from None


def _read(text: str) -> object:
    """Read YAML that is no larger, and not much deeper, as what it says than as a text.

    Raises:
        YAMLError: It is none.
        ValueError: It repeats a part of itself, it is nested too deeply, or a value of it is none.

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
    return yaml.load(text, _LOADER)
