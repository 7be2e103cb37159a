"""Read the configuration: a file, its portfolio, the settings of the environment; make its home.

ARMWISE_LIMITS__IN_FLIGHT=32 wins over `limits: {in_flight: 64}` of the file. A relative path in the file is
relative to its folder, one in the environment to the current folder; all are made absolute here, once.
"""

import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from armwise.agent.config.app_config import AppConfig
from armwise.agent.configuration_file import ConfigError, describe_unreadable, find_folder, read_file
from armwise.agent.file_errors import (
    describe_closed,
    describe_file_error,
    describe_file_for_folder,
    find_existing,
)
from armwise.agent.spec import choices_in, find_item_type, list_fields
from armwise.arms.local_ray import UMASK
from armwise.arms.models import Backbone
from armwise.arms.relative_paths import FOLDER, find_mark, locate_path
from armwise.arms.retrievers import ArmSpec, catalog
from armwise.arms.secrets import read_text
from armwise.arms.suggestions import did_you_mean, select_names

PREFIX = "ARMWISE_"

DEEPER = "__"
"""Stands between a key and one inside it."""

FILE = "_FILE"
"""Ends a variable that holds the path of a file with the value, such as a secret that a container mounts."""

OTHERS = (*("ARMWISE_URL", "ARMWISE_API_KEY", "ARMWISE_RUN", "ARMWISE_CONFIG_FOLDER", "ARMWISE_COLD"),)
"""Variables of clients, and of `armwise serve`, which are not settings."""

SERVICE_LINK = re.compile(
    r"ARMWISE_(\w+_)?(SERVICE_HOST|SERVICE_PORT|SERVICE_PORT_\w+|PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)="
    r"|ARMWISE_(\w+_)?PORT=(tcp|udp|sctp)://"
)
"""What Kubernetes sets in each container where a service is called `armwise` or begins so: name and value."""

OWN = ("corpora", "indexes", "routers", "warm_starts")
"""Folders of the home that the service makes; others in it are reached through the home alone."""

HOME_REMEDY = "`home` of the configuration, or ARMWISE_HOME, names another"
"""What corrects a home that cannot be used."""

SQLITE_SUFFIXES = ("", "-wal", "-shm")
"""Suffixes of the files that SQLite creates beside a database."""


def load(path: Path, without: Collection[str] = ()) -> AppConfig:
    """Read the application's `args` from a Ray Serve configuration file.

    Args:
        path: The file.
        without: Keys of `args` to ignore.

    Raises:
        ConfigError: The file cannot be read, or is invalid.
    """
    document, folder = read_file(path), find_folder(path)
    applications = document.get("applications") if isinstance(document, dict) else None
    if not isinstance(applications, list) or len(applications) != 1 or not isinstance(applications[0], dict):
        raise ConfigError(f"{path}: exactly one application is expected under `applications`")
    try:
        return parse_with_environment(applications[0].get("args") or {}, without, folder)
    except ConfigError as error:
        set_here = select_variables(os.environ)
        where = f"{path} with {', '.join(set_here)}" if set_here else path
        raise ConfigError("\n".join(f"{where}: {line}" for line in str(error).splitlines())) from None


def parse_with_environment(
    args: object, without: Collection[str] = (), folder: Path | None = None
) -> AppConfig:
    """Validate the `args` of the application as `parse` does, with the settings of this environment.

    Called once, by the process that starts the service; other processes receive its result.

    Args:
        args: The settings of the file.
        without: Keys to ignore.
        folder: The folder that relative paths in the file are relative to; None: the current folder, to which
            paths in the environment are always relative.

    Raises:
        ConfigError: The settings are invalid, or a variable ARMWISE_... is not a setting.
    """
    try:
        document = overridden(args, AppConfig)
    except EnvironmentSettingError as error:
        raise ConfigError(str(error)) from None
    if isinstance(document, dict):
        document = {key: value for key, value in document.items() if key not in without}
    folder = folder or Path.cwd()
    config = parse(document, folder)
    if config.warm_start is not None and config.warm_start.portfolio is not None:
        patterns = config.warm_start.portfolio.pool
        select_names(config.arms, patterns, "warm_start.portfolio.pool: no arm", ConfigError)
    home = args.get("home") if isinstance(args, dict) else None
    config._file_home = locate_path(home, folder) if isinstance(home, str) else None  # noqa: SLF001
    return config


def parse(args: object, folder: Path | None = None) -> AppConfig:
    """Validate the `args` of the application, and read the portfolio that they name.

    Args:
        args: The settings.
        folder: The folder that their relative paths are relative to; None: the current folder.

    Raises:
        ConfigError: The settings are invalid, or the portfolio cannot be read.
    """
    folder = folder or Path.cwd()
    return AppConfig.from_document(_with_portfolio(args, folder), folder)


def _with_portfolio(args: object, folder: Path) -> object:
    """Add the arms and backbones of the portfolio to the arguments. Raises ConfigError."""
    if not isinstance(args, dict) or not isinstance(args.get("portfolio"), str):
        return args
    merged = {**args, "portfolio": None}
    for key, chosen in read_portfolio(Path(locate_path(args["portfolio"], folder))).items():
        here = args.get(key) or {}
        if not isinstance(here, dict):
            return args  # reported with all other errors
        for name in chosen.keys() & here.keys():
            if not _equivalent(key, chosen[name], here[name], folder):
                raise ConfigError(f"{args['portfolio']}: {key}.{name} is another in the configuration")
        merged[key] = {**here, **{name: spec for name, spec in chosen.items() if name not in here}}
    return merged


def _equivalent(key: str, first: object, second: object, folder: Path) -> bool:
    """Return whether two descriptions of an arm or a backbone mean the same."""
    try:
        if key == "backbones":
            one, other = (Backbone.model_validate(it, context={FOLDER: folder}) for it in (first, second))
            return one.vectors_as(other)
        specs = {name: ArmSpec.model_validate(it) for name, it in (("first", first), ("second", second))}
        return catalog.are_equivalent(*catalog.locate_arms(specs, folder).values())
    except ValueError:
        return first == second  # their errors are reported later


def read_portfolio(path: Path) -> dict[str, dict[str, Any]]:
    """Return the `arms` and the `backbones` of a portfolio file, unchecked. Raises ConfigError."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: {describe_unreadable(error)}") from None
    if not isinstance(document, dict) or not document.get("arms"):
        raise ConfigError(f"{path}: no `arms` stand there; `armwise lab portfolio` writes such a file")
    for key, value in document.items():
        if key not in ("arms", "backbones") or not isinstance(value, dict):
            raise ConfigError(f"{path}: `arms` and `backbones` were expected, each by name; got {key!r}")
    return document


# -- settings of the environment ------------------------------------------------------------------


class EnvironmentSettingError(ValueError):
    """A variable of the environment is not a setting, or cannot be read; one line per error."""


def select_variables(environment: Mapping[str, str]) -> list[str]:
    """Return the variables that may be settings.

    >>> select_variables({"ARMWISE_FLOOR": "0.1", "ARMWISE_URL": "http://x", "ARMWISE_PORT": "tcp://10.0.0.1:80"})
    ['ARMWISE_FLOOR']
    """
    return sorted(
        name
        for name, value in environment.items()
        if name.startswith(PREFIX) and name not in OTHERS and not SERVICE_LINK.match(f"{name}={value}")
    )


def overridden(args: Any, model: type[BaseModel], environment: Mapping[str, str] = os.environ) -> Any:
    """Return settings overridden by those of the environment, before validation.

    Variables that settings refer to, such as for the secret of a key, are left alone.

    Args:
        args: The settings of the file; any value other than a mapping is returned unchanged.
        model: The class of the settings.
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
    variables_by_place: dict[tuple[str, ...], str] = {}
    for variable in sorted(select_variables(environment), key=lambda name: name.count(DEEPER)):
        if {variable, variable.removesuffix(FILE)} & named:
            continue
        try:
            place, annotation, is_file = _place(variable, args, model)
            text = read_text(variable, environment[variable]) if is_file else environment[variable]
            _set(result, place, _value(variable, text, annotation), variable)
        except ValueError as error:
            problems.append(str(error))
            continue
        if place in variables_by_place:
            problems.append(f"{variable} and {variables_by_place[place]} set the same: unset one of them")
        variables_by_place[place] = variable
    if problems:
        raise EnvironmentSettingError("\n".join(problems))
    return result


def _texts(value: object) -> Iterator[str]:
    """Yield every text of a document."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _texts(part)


def _place(variable: str, args: object, model: type[BaseModel]) -> tuple[tuple[str, ...], Any, bool]:
    """Return the keys that a variable names, the type of the value, and whether it names a file."""
    for name, is_file in ((variable, False), (variable.removesuffix(FILE), True)):
        keys: list[str] = []
        annotation: Any = model
        here, candidates = args, list[str]()
        for part in name.removeprefix(PREFIX).lower().split(DEEPER):
            candidates, annotation, key = _inside(annotation, here, part)
            if annotation is None:
                break
            keys.append(key)
            here = here.get(key) if isinstance(here, dict) else None
        else:
            return tuple(keys), annotation, is_file
        if name == variable:
            before = PREFIX + "".join(f"{key.upper()}{DEEPER}" for key in keys)
            hint = (
                did_you_mean(variable, [before + _spell_key(candidate) for candidate in candidates])
                if candidates
                else ""
            )
    raise EnvironmentSettingError(f"unknown variable {variable!r} of the environment{hint}")


def _inside(annotation: Any, here: object, part: str) -> tuple[list[str], Any, str]:
    """Return the keys that a value of a type may have, and the type and the spelling of one of them."""
    if fields := list_fields(annotation):
        return list(fields), _find_type(fields[part]) if part in fields else None, part
    choices = choices_in(annotation)
    if any(get_origin(choice) is dict for choice in choices) or Any in choices:
        names = list(here) if isinstance(here, dict) else []
        key = next((name for name in names if _spell_key(str(name)).lower() == part), part)
        return names, find_item_type(annotation) or Any, key
    return [], None, part


def _find_type(field: FieldInfo) -> Any:
    """Return the type of a field, with its mark if it may be a relative path."""
    mark = find_mark((field.annotation, *field.metadata))
    return field.annotation if mark is None else Annotated[field.annotation, mark]


def _spell_key(key: str) -> str:
    """Return a key as it is written in the name of a variable.

    >>> _spell_key("my-arm.v2")
    'MY_ARM_V2'
    """
    return re.sub(r"[^A-Z0-9]", "_", key.upper())


def _value(variable: str, text: str, annotation: Any) -> Any:
    """Return the value of a variable: the text itself if the setting is a text, else parsed as YAML."""
    choices = choices_in(annotation)
    try:
        parsed = yaml.safe_load(text)
    except yaml.YAMLError:
        parsed = text
        if not _is_text(choices):
            raise EnvironmentSettingError(f"{variable} is not valid YAML") from None
    if not _is_text(choices) or (parsed is None and NoneType in choices):
        return parsed
    mark = find_mark(annotation)
    return text if mark is None else mark.locate(text, Path.cwd())


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


# -- the home --------------------------------------------------------------------------------------


def make_home(config: AppConfig) -> list[str]:
    """Make the home, and remove other users' permissions on it and on the files of an SQLite log.

    Nobody else gets through a closed folder to what is in it. Links and files of other users are left
    alone.

    Returns:
        Lines for the operator: the home in use, if the environment overrides the file; and what was closed.

    Raises:
        ConfigError: The home cannot be made.
    """
    lines = []
    if other := config.overridden_home:
        lines = [f"the home is {config.home_path} (from ARMWISE_HOME), not {other} (from the configuration)"]
    try:
        config.home_path.mkdir(mode=0o777 & ~UMASK, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"the home {config.home_path}: {describe_file_error(error)}; {HOME_REMEDY}"
        ) from None
    log = config.log_path
    files = [] if log is None else [log.with_name(log.name + suffix) for suffix in SQLITE_SUFFIXES]
    for place in (config.home_path, *files):
        with suppress(FileNotFoundError):
            about = place.lstat()
            if not place.is_symlink() and about.st_uid == os.getuid() and about.st_mode & UMASK:
                place.chmod(about.st_mode & 0o777 & ~UMASK)
                mode = about.st_mode & 0o777
                lines.append(f"closed to other users of this machine: {place} (mode {mode:o})")
    return lines


def find_home_problem(config: AppConfig) -> str:
    """Return why the home, or a folder of the service in it, can neither be used nor made; empty: it can."""
    home = config.home_path
    for place in (home, *(home / name for name in OWN)):
        there = find_existing(place)
        if not there.is_dir():
            return f"the home {home}: {describe_file_for_folder(there)}"
        if not os.access(there, os.W_OK | os.X_OK):
            return f"the home {home}: {describe_closed(there)}"
    return ""
