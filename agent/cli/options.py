"""Options that several verbs share, options that are generated from a settings model, and their values."""

import inspect
import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import wraps
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_origin

import typer

from armwise.agent.cli.console import PLAIN, errors

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

    from armwise.agent.config import AppConfig

CONFIG = Path("serve_config.yaml")

WRITTEN = Path("armwise.yaml")
"""Default of `armwise init --output`."""

_AGO = re.compile(r"([0-9]{1,5})([dh])")

_UNITS = {"d": timedelta(days=1), "h": timedelta(hours=1)}

URL = "http://127.0.0.1:8000"

ConfigPath = Annotated[Path, typer.Option("--config", "-c", help="Configuration file.")]

Url = Annotated[str, typer.Option("--url", help="Address of the service.", envvar="ARMWISE_URL")]

Key = Annotated[
    str | None, typer.Option("--key", help="API key, if the service requires one.", envvar="ARMWISE_API_KEY")
]

SOURCES = "A JSONL file, a BEIR folder, a document, a folder of documents, `stdlib` or `language`."
"""What `serve`, `init` and `ingest` take as documents."""

ARGUMENT = ""
"""In place of the flags of an option: the field is a positional argument."""

T = TypeVar("T")


def open_config(config: Path, without: Collection[str] = ()) -> "AppConfig":
    """Read the configuration that `--config` names, and make its home, for verbs that write there.

    Args:
        config: The file.
        without: Keys of its `args` that are ignored.

    Raises:
        ConfigError: It cannot be read, or is invalid.
    """
    from armwise.agent.config import load

    settings = load(config, without)
    open_home(settings)
    return settings


def open_home(settings: "AppConfig") -> None:
    """Make the home of a configuration, and print what of it other users of the machine could read."""
    from armwise.agent.config import make_home

    for line in make_home(settings):
        errors.print(line, style="yellow", **PLAIN)


def warn_of_a_copy(log: Path) -> None:
    """Print that a log was copied while it was in use, if it was; call it before the log is opened."""
    from armwise.feedback.log import COPIED_IN_USE, lacks_wal

    if lacks_wal(log):
        errors.print(f"{log}: {COPIED_IN_USE[0]}; {COPIED_IN_USE[1]}", style="yellow", **PLAIN)


def with_log(config: Path, without: Collection[str] = ("router",), *, writes: bool = False) -> "AppConfig":
    """Return the configuration, for verbs that need an existing log.

    Args:
        config: The file.
        without: Keys of its `args` that are ignored.
        writes: Whether the verb changes the log; then the home is closed to other users, too.

    Raises:
        ConfigError: It cannot be read, or is invalid.
        NoLogError: The file of the log is missing.
    """
    from armwise.agent.config import load
    from armwise.feedback.errors import NoLogError

    settings = load(config, without)
    if (path := settings.log_path) is not None:
        if not os.path.lexists(path):
            raise NoLogError(path)
        warn_of_a_copy(path)
    if writes:
        open_home(settings)
    return settings


def moment(option: str, text: str) -> datetime:
    """Read a date and a time, UTC where no zone is given, or how long ago it is. Raises ValueError.

    >>> round((datetime.now(UTC) - moment("--since", "36h")).total_seconds() / 3600)
    36
    """
    from armwise.agent.evaluation import read_moment

    if ago := _AGO.fullmatch(text):
        return datetime.now(UTC) - int(ago[1]) * _UNITS[ago[2]]
    try:
        return read_moment(text)
    except ValueError as error:
        raise ValueError(f"{option} {error}, or 7d or 12h for as long ago") from None


REPORTS = (".json", ".html")
"""Ends of the names of the files that a report can be written to."""


def require_report(output: Path | None) -> None:
    """Refuse a file that no report can be written to. Raises ValueError."""
    if output is not None and output.suffix not in REPORTS:
        raise ValueError(f"--output {output}: a name that ends with {' or '.join(REPORTS)} was expected")


def write_report(output: Path | None, document: Mapping[str, Any], page: Callable[[], str]) -> None:
    """Write a document as JSON, or its page, as the name of the file says; None for no file."""
    from armwise.feedback.jsonl import appearing

    if output is None:
        return
    text = page() if output.suffix == ".html" else json.dumps(document, indent=2)
    with appearing(output) as file:
        file.write(text.encode())


SCALARS = (int, float, bool, str, Path)


def settings_options(
    model: "type[BaseModel]",
    flags: Mapping[str, str] | None = None,
    *,
    without: Collection[str] = (),
    text: Collection[str] = (),
    help_texts: Mapping[str, str] | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a verb an option for each field of a settings model.

    The verb is called with a dictionary of the fields that differ from their defaults, and with its own
    parameters by name. The model validates the values.

    Args:
        model: The settings; the description of a field is the help of its option.
        flags: Flags of a field, separated by spaces, where they are not `--name-of-the-field`. Positional
            arguments come in this order, whatever the order of the fields.
        without: Fields that are not options.
        text: Fields that the verb parses from text: a list of them where the field is a container.
        help_texts: Help of an option where it is not the description of the field.
    """
    arguments = [name for name, flag in (flags or {}).items() if flag == ARGUMENT]
    fields = {
        name: model.model_fields[name] for name in (*arguments, *model.model_fields) if name not in without
    }

    def decorate(verb: Callable[..., None]) -> Callable[..., None]:
        _, *declared = inspect.signature(verb, eval_str=True).parameters.values()

        @wraps(verb)
        def command(**values: Any) -> None:
            given = {
                parameter.name: (values.pop(parameter.name), parameter.default) for parameter in generated
            }
            verb(
                {name: value for name, (value, default) in given.items() if value not in (None, default)},
                **values,
            )

        generated = [
            _parameter(
                name,
                field,
                (flags or {}).get(name, f"--{name.replace('_', '-')}"),
                (help_texts or {}).get(name, field.description or ""),
                as_text=name in text,
            )
            for name, field in fields.items()
        ]
        parameters = sorted(
            [*generated, *declared], key=lambda parameter: parameter.default is not inspect.Parameter.empty
        )
        keywords = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
        command.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in keywords}
        return command

    return decorate


def _parameter(name: str, field: "FieldInfo", flags: str, text: str, *, as_text: bool) -> inspect.Parameter:
    """Return the parameter that Typer reads a field from."""
    kind, many = _kind(field.annotation)
    annotation: Any = str if as_text or (kind not in SCALARS and not issubclass(kind, Enum)) else kind
    if many:
        annotation = list[annotation]
        if "repeatable" not in text.lower() and flags != ARGUMENT:
            text = f"{text.removesuffix('.')}; repeatable."
    info: Any = typer.Argument(help=text) if flags == ARGUMENT else typer.Option(*flags.split(), help=text)
    default: Any = inspect.Parameter.empty
    if not field.is_required():
        default = None if many else field.get_default()
        annotation = annotation | None if default is None else annotation
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[annotation, info]
    )


def _kind(annotation: Any) -> tuple[type, bool]:
    """Return the type of one value, and whether an option may be repeated.

    >>> _kind(tuple[Path, ...] | None), _kind(dict[str, float]), _kind(int | None)
    ((<class 'pathlib.Path'>, True), (<class 'str'>, True), (<class 'int'>, False))
    >>> _kind(int | Path)
    (<class 'str'>, False)
    """
    from armwise.agent.spec import choices_in

    first, *others = [choice for choice in choices_in(annotation) if choice is not NoneType]
    if others:
        return str, False
    if get_origin(first) is tuple and Ellipsis in get_args(first):
        return _kind(get_args(first)[0])[0], True
    if get_origin(first) is dict:
        return str, True
    return (first, False) if isinstance(first, type) else (str, False)


def parse_renaming(text: str) -> tuple[str, str]:
    """Read one `declared=score`; a name alone is both.

    >>> parse_renaming("answer_correct=em"), parse_renaming("recall")
    (('answer_correct', 'em'), ('recall', 'recall'))
    """
    name, _, score = text.partition("=")
    return name, score or name


def parse_weight(text: str, option: str = "--measure") -> tuple[str, float]:
    """Read one `name=weight`; a name alone has weight 1.

    >>> parse_weight("em"), parse_weight("f1=0.2")
    (('em', 1.0), ('f1', 0.2))
    """
    name, _, weight = text.partition("=")
    try:
        return name, float(weight or 1.0)
    except ValueError:
        raise ValueError(f"{option} {text}: {weight!r} is not a number; name=weight was expected") from None


def unique(option: str, pairs: Iterable[tuple[str, T]]) -> dict[str, T]:
    """Return the value that an option gives each name.

    Raises:
        ValueError: A name is given twice.

    >>> unique("--measure", [("em", 1.0), ("f1", 0.2)])
    {'em': 1.0, 'f1': 0.2}
    """
    values: dict[str, T] = {}
    for name, value in pairs:
        if name in values:
            raise ValueError(f"{option} {name} is given twice: with {values[name]} and with {value}")
        values[name] = value
    return values
