"""The file of a configuration as YAML: what it says, or why it cannot be read.

Loads no settings: the process that starts a service reads only where it listens.
"""

import os
from pathlib import Path
from typing import Any

import yaml

from armwise.agent.file_errors import describe_file_error

CONFIG = Path("serve_config.yaml")
"""Default of `--config`."""

WRITTEN = Path("armwise.yaml")
"""Default of `armwise init --output`."""


class ConfigError(ValueError):
    """The configuration is invalid; one line per error."""


class _Loader(yaml.SafeLoader):
    """Refuses a mapping with a repeated key, of which YAML would keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in keys:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key.value!r} is there twice", key.start_mark
                    )
                keys.add(key.value)
        return super().construct_mapping(node, deep)


def read_file(path: Path) -> Any:
    """Return what a file of a configuration says. Raises ConfigError."""
    try:
        return _Loader(path.read_text(encoding="utf-8")).get_single_data()
    except FileNotFoundError:
        here = path == CONFIG and WRITTEN.is_file()
        remedy = f"{WRITTEN} is here: -c {WRITTEN}" if here else "`armwise init` writes a configuration"
        raise ConfigError(f"{path}: no such file; {remedy}") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: {describe_unreadable(error)}") from None


def find_folder(path: Path) -> Path:
    """Return the folder of a configuration file, absolute and without `..`; symbolic links are not followed.

    >>> find_folder(Path("/srv/elsewhere/../project/config.yaml"))
    PosixPath('/srv/project')
    """
    return Path(os.path.abspath(path)).parent


def describe_unreadable(error: Exception) -> str:
    """Return on one line why a file of YAML cannot be read: where in it, or what is at its place.

    >>> try:
    ...     yaml.safe_load("arms: [bm25")
    ... except yaml.YAMLError as error:
    ...     describe_unreadable(error)
    "line 1, column 12: expected ',' or ']', but got '<stream end>'"
    """
    if isinstance(error, OSError):
        return describe_file_error(error)
    mark = getattr(error, "problem_mark", None)
    if not isinstance(error, yaml.MarkedYAMLError) or mark is None:
        return str(error).partition("\n")[0]
    return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
