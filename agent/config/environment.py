"""Settings from the environment: ARMWISE_LIMITS__IN_FLIGHT=32 wins over `limits: {in_flight: 64}`."""

import os
import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel

from arms.secrets import text_of
from arms.suggestions import did_you_mean

PREFIX = "ARMWISE_"

DEEPER = "__"
"""Stands between a key and one inside it."""

FILE = "_FILE"
"""Ends a variable that holds the path of a file with the value, such as a secret that a container mounts."""

OTHERS = ("ARMWISE_URL", "ARMWISE_API_KEY", "ARMWISE_POINT", "ARMWISE_RUN")
"""Variables of clients, and of `armwise serve`, which are not settings."""

SERVICE_LINK = re.compile(
    r"ARMWISE_(\w+_)?(SERVICE_HOST|SERVICE_PORT|SERVICE_PORT_\w+|PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)="
    r"|ARMWISE_(\w+_)?PORT=(tcp|udp|sctp)://"
)
"""What Kubernetes sets in each container where a service is called `armwise` or begins so: name and value."""


class EnvironmentSettingError(ValueError):
    """A variable of the environment is not a setting, or cannot be read; one line per error."""


def variables_of(environment: Mapping[str, str]) -> list[str]:
    """Return the variables that may be settings.

    >>> variables_of({"ARMWISE_FLOOR": "0.1", "ARMWISE_URL": "http://x", "ARMWISE_PORT": "tcp://10.0.0.1:80"})
    ['ARMWISE_FLOOR']
    """
    return sorted(
        name
        for name, value in environment.items()
        if name.startswith(PREFIX) and name not in OTHERS and not SERVICE_LINK.match(f"{name}={value}")
    )


def overridden(args: Any, model: type[BaseModel], environment: Mapping[str, str] = os.environ) -> Any:
    """Return settings with those of the environment in their place, unchecked.

    A variable that the settings name as a value, such as that of a key, is none of them.

    Args:
        args: The settings of the file; anything but a mapping is returned as it is.
        model: Their classes.
        environment: The variables.

    Raises:
        EnvironmentSettingError: A variable is not a setting, or cannot be read.

    >>> class Limits(BaseModel):
    ...     chats: int = 1
    >>> class Settings(BaseModel):
    ...     limits: Limits = Limits()
    >>> overridden({"limits": {}}, Settings, {"ARMWISE_LIMITS__CHATS": "3"})
    {'limits': {'chats': 3}}
    """
    if not isinstance(args, dict):
        return args
    result, problems = deepcopy(args), []
    named = set(_texts(args))
    found: dict[tuple[str, ...], str] = {}
    for variable in sorted(variables_of(environment), key=lambda name: name.count(DEEPER)):
        if {variable, variable.removesuffix(FILE)} & named:
            continue
        try:
            place, annotation, is_file = _place(variable, args, model)
            text = text_of(variable, environment[variable]) if is_file else environment[variable]
            _set(result, place, _value(variable, text, annotation), variable)
        except ValueError as error:
            problems.append(str(error))
            continue
        if place in found:
            problems.append(f"{variable} and {found[place]} set the same: unset one of them")
        found[place] = variable
    if problems:
        raise EnvironmentSettingError("\n".join(problems))
    return result


def _texts(value: object) -> Iterator[str]:
    """Yield every text of a document."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _texts(one)


def _place(variable: str, args: object, model: type[BaseModel]) -> tuple[tuple[str, ...], Any, bool]:
    """Return the keys that a variable names, the type of the value, and whether it names a file."""
    for name, is_file in ((variable, False), (variable.removesuffix(FILE), True)):
        keys: list[str] = []
        annotation: Any = model
        here, known = args, list[str]()
        for part in name.removeprefix(PREFIX).lower().split(DEEPER):
            known, annotation, key = _inside(annotation, here, part)
            if annotation is None:
                break
            keys.append(key)
            here = here.get(key) if isinstance(here, dict) else None
        else:
            return tuple(keys), annotation, is_file
        if name == variable:
            before = PREFIX + "".join(f"{key.upper()}{DEEPER}" for key in keys)
            hint = did_you_mean(variable, [before + _written(one) for one in known]) if known else ""
    raise EnvironmentSettingError(f"unknown variable {variable!r} of the environment{hint}")


def _inside(annotation: Any, here: object, part: str) -> tuple[list[str], Any, str]:
    """Return the keys that a value of a type may have, and of one of them the type and how it is written."""
    choices = _choices(annotation)
    models = [one for one in choices if isinstance(one, type) and issubclass(one, BaseModel)]
    if fields := {name: field for one in models for name, field in one.model_fields.items()}:
        return list(fields), fields[part].annotation if part in fields else None, part
    of_dict = [get_args(choice) for choice in choices if get_origin(choice) is dict]
    if of_dict or Any in choices:
        names = list(here) if isinstance(here, dict) else []
        key = next((name for name in names if _written(str(name)).lower() == part), part)
        return names, of_dict[0][1] if of_dict else Any, key
    return [], None, part


def _written(key: str) -> str:
    """Return a key as a variable has it.

    >>> _written("my-arm.v2")
    'MY_ARM_V2'
    """
    return re.sub(r"[^A-Z0-9]", "_", key.upper())


def _choices(annotation: Any) -> list[Any]:
    """Return the types that a value may have."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _choices(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return [choice for inner in get_args(annotation) for choice in _choices(inner)]
    return [annotation]


def _value(variable: str, text: str, annotation: Any) -> Any:
    """Return the value of a text: as it is where a text is meant, else as YAML reads it."""
    choices = _choices(annotation)
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError:
        found = text
        if not _is_text(choices):
            raise EnvironmentSettingError(f"{variable} is not valid YAML") from None
    return found if not _is_text(choices) or (found is None and NoneType in choices) else text


def _is_text(choices: list[Any]) -> bool:
    return any(choice in (str, Path) or get_origin(choice) is Literal for choice in choices)


def _set(document: dict[str, Any], place: tuple[str, ...], value: Any, variable: str) -> None:
    *parents, last = place
    for key in parents:
        if document.get(key) is None:
            document[key] = {}
        document = document[key]
        if not isinstance(document, dict):
            raise EnvironmentSettingError(f"{variable}: {key!r} is not a mapping in the configuration")
    document[last] = value
