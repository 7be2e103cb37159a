"""Read the configuration: a file, its portfolio, and the settings of the environment."""

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml

from agent.config.app_config import AppConfig, ConfigError
from agent.config.environment import EnvironmentSettingError, overridden, variables_of
from arms.models import Backbone
from arms.retrievers import ArmSpec, catalog


def configured(args: object, without: Collection[str] = ()) -> AppConfig:
    """Validate the `args` of the application as `parse` does, with the settings of this environment.

    The process that starts the service calls it, once: others get what it returns, or `parse` it.

    Args:
        args: The settings of the file.
        without: Keys that are ignored.

    Raises:
        ConfigError: They are invalid, or a variable ARMWISE_... is not a setting.
    """
    try:
        found = overridden(args, AppConfig)
    except EnvironmentSettingError as error:
        raise ConfigError(str(error)) from None
    if isinstance(found, dict):
        found = {key: value for key, value in found.items() if key not in without}
    return parse(found)


def parse(args: object) -> AppConfig:
    """Validate the `args` of the application, and read the portfolio that they name. Raises ConfigError."""
    return AppConfig.parsed(_with_portfolio(args))


def _with_portfolio(args: object) -> object:
    """Add the arms and backbones of the portfolio to the arguments. Raises ConfigError."""
    if not isinstance(args, dict) or not isinstance(args.get("portfolio"), str):
        return args
    merged = {**args, "portfolio": None}
    for key, chosen in read_portfolio(Path(args["portfolio"]).expanduser()).items():
        here = args.get(key) or {}
        if not isinstance(here, dict):
            return args  # reported with all other errors
        for name in chosen.keys() & here.keys():
            if not _equivalent(key, chosen[name], here[name]):
                raise ConfigError(f"{args['portfolio']}: {key}.{name} is another in the configuration")
        merged[key] = {**here, **{name: spec for name, spec in chosen.items() if name not in here}}
    return merged


def _equivalent(key: str, one: object, other: object) -> bool:
    """Return whether two descriptions of an arm or a backbone mean the same."""
    try:
        if key == "backbones":
            return Backbone.model_validate(one).vectors_as(Backbone.model_validate(other))
        return catalog.same(ArmSpec.model_validate(one), ArmSpec.model_validate(other))
    except ValueError:
        return one == other  # their errors are reported later


def read_portfolio(path: Path) -> dict[str, dict[str, Any]]:
    """Return the `arms` and the `backbones` of a portfolio file, unchecked. Raises ConfigError."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: {error}") from None
    if not isinstance(document, dict) or not document.get("arms"):
        raise ConfigError(f"{path}: no `arms` stand there; `armwise portfolio` writes such a file")
    for key, value in document.items():
        if key not in ("arms", "backbones") or not isinstance(value, dict):
            raise ConfigError(f"{path}: `arms` and `backbones` were expected, each by name; got {key!r}")
    return document


def load(path: Path, without: Collection[str] = ()) -> AppConfig:
    """Read the application's `args` from a Ray Serve configuration file.

    Args:
        path: The file.
        without: Keys of `args` that are ignored.

    Raises:
        ConfigError: It cannot be read, or is invalid.
    """
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; start from serve_config.yaml") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: {error}") from None
    applications = document.get("applications") if isinstance(document, dict) else None
    if not isinstance(applications, list) or len(applications) != 1 or not isinstance(applications[0], dict):
        raise ConfigError(f"{path}: exactly one application is expected under `applications`")
    try:
        return configured(applications[0].get("args") or {}, without)
    except ConfigError as error:
        set_here = variables_of(os.environ)
        where = f"{path} with {', '.join(set_here)}" if set_here else path
        raise ConfigError("\n".join(f"{where}: {line}" for line in str(error).splitlines())) from None


CONFIG = Path("serve_config.yaml")
"""Default of `--config`."""
