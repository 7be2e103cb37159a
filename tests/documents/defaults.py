"""The defaults of what can be left out: the options of the verbs, the models that they fill, and the client.

The settings of the configuration stand in docs/reference/configuration/ and in agent/config/schema.json.
"""

import inspect
import json
from collections.abc import Iterator
from typing import Any

import typer
from pydantic import BaseModel

from armwise.agent.access import NewKey
from armwise.agent.cli.main import app
from armwise.agent.client import AsyncClient, Client
from armwise.agent.evaluation import EvaluationRequest
from armwise.agent.lab.offline import (
    CascadeTraining,
    EvaluationSettings,
    Labelling,
    PortfolioSelection,
    RelevanceTraining,
    Scoring,
    Synthesis,
    Training,
)
from armwise.agent.lab.simulation import Simulation
from armwise.agent.lab.warmstart import InsertSettings, OtherLabels

MODELS = (
    *(
        OtherLabels,
        CascadeTraining,
        EvaluationSettings,
        EvaluationRequest,
        InsertSettings,
        Labelling,
        NewKey,
    ),
    *(RelevanceTraining, Scoring, PortfolioSelection, Simulation, Synthesis, Training),
)

Table = dict[str, dict[str, Any]]


def verbs() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the options of each verb, by their flags."""
    group: Any = typer.main.get_command(app)
    for name, lazy in group.commands.items():
        verb = lazy.command
        for inner, one_of in getattr(verb, "commands", {"": verb}).items():
            command = getattr(one_of, "command", one_of)  # those of the lab are lazy, too
            options = {" ".join((*one.opts, *one.secondary_opts)): option(one) for one in command.params}
            yield f"{name} {inner}".strip(), options


def option(parameter: Any) -> Any:
    """Return the default of an option, with its bounds and its variable where it has them."""
    if parameter.required:
        return "required"
    more = {name: getattr(parameter, name, None) for name in ("min", "max", "envvar")}
    known = {name: value for name, value in more.items() if value is not None}
    return {"default": parameter.default, **known} if known else parameter.default


def fields(model: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON Schema of each field, without what is for people."""
    schema = model.model_json_schema()
    return {
        name: {key: value for key, value in one.items() if key not in ("title", "description")}
        | ({"required": True} if name in schema.get("required", ()) else {})
        for name, one in schema["properties"].items()
    }


def parameters(client: type) -> dict[str, Any]:
    return {name: one.default for name, one in inspect.signature(client).parameters.items()}


def table() -> dict[str, Table]:
    found = {
        "verbs": dict(verbs()),
        "models": {model.__name__: fields(model) for model in MODELS},
        "clients": {client.__name__: parameters(client) for client in (Client, AsyncClient)},
    }
    as_json: dict[str, Table] = json.loads(json.dumps(found, default=str))
    return as_json


def _lines(parts: dict[str, Table]) -> Iterator[str]:
    """Yield the table as YAML, a line for each option."""
    for part, entries in parts.items():
        yield f"{part}:"
        for name, rows in entries.items():
            yield f"  {name}:" + ("" if rows else " {}")
            yield from (f"    {json.dumps(key)}: {json.dumps(value)}" for key, value in rows.items())


def page() -> str:
    """Return the table as YAML, a line for each option."""
    return "\n".join(_lines(table())) + "\n"
