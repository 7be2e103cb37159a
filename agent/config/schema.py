"""The JSON Schema of a configuration file, by which editors complete and check it.

`python -m agent.config.schema > agent/config/schema.json`; a test fails when the file is out of date. What
depends on several keys, such as a backbone that an arm names, is checked by `armwise doctor` alone.
"""

import inspect
import json
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, models_json_schema
from typing_extensions import override

from agent.config.app_config import AppConfig
from agent.policies import catalog as policy_catalog
from agent.routers import catalog as router_catalog
from arms.retrievers import catalog

DIALECT = "https://json-schema.org/draft/2020-12/schema"

Schema = dict[str, Any]

OWN_CLASS: Schema = {"type": "string", "pattern": r"^[^:\s]+:[^:\s]+$"}
"""The import path of an arm of the user's own."""


class _Untitled(GenerateJsonSchema):
    """Leaves out titles, which repeat the names of keys."""

    @override
    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def config_schema() -> Schema:
    """Return the schema of a Ray Serve configuration with one application, this service."""
    models: list[type[BaseModel]] = [AppConfig, *(kind.params for kind in catalog.KINDS.values())]
    places, found = models_json_schema(
        [(model, "validation") for model in models], schema_generator=_Untitled
    )
    defs: dict[str, Schema] = found["$defs"]
    args = defs["AppConfig"]
    args["required"].remove("arms")
    del args["properties"]["arms"]["minProperties"]
    args["anyOf"] = [{"required": ["arms"]}, {"required": ["portfolio"]}]
    defs["EmbeddedSpec"]["required"] = ["engine"]  # the key by which the engines differ
    arms = {name: places[kind.params, "validation"] for name, kind in catalog.KINDS.items()}
    needing = {name for name, one in arms.items() if defs[one["$ref"].rpartition("/")[2]].get("required")}
    _by_kind(defs["ArmSpec"], arms, needing, OWN_CLASS)
    for spec, built in (("PolicySpec", policy_catalog.POLICIES), ("RouterPlan", router_catalog.ROUTERS)):
        params = {name: _params(one) for name, one in built.items()}
        _by_kind(defs[spec], params, {name for name, one in params.items() if one["required"]})
    application = {
        "type": "object",
        "required": ["args"],
        "properties": {
            "import_path": {"const": "agent.app:build"},
            "args": {"$ref": "#/$defs/AppConfig"},
        },
    }
    address = {
        "type": "object",
        "properties": {
            "host": {"type": "string"},
            "port": {"type": "integer", "minimum": 0, "maximum": 65535},
        },
    }
    return {
        "$schema": DIALECT,
        "title": "Armwise",
        "description": "A Ray Serve configuration; all but `args` belongs to Ray Serve.",
        "type": "object",
        "required": ["applications"],
        "properties": {
            "http_options": address,
            "applications": {"type": "array", "items": application, "minItems": 1, "maxItems": 1},
        },
        "$defs": defs,
    }


def _by_kind(
    spec: Schema, params: Mapping[str, Schema], needing: Collection[str], other: Schema | None = None
) -> None:
    """Let the schema of a kind and its parameters name the kinds, and the parameters of each."""
    kind, names = spec["properties"]["kind"], {"enum": sorted(params)}
    kind.update({"anyOf": [names, other]} if other else names)
    spec["allOf"] = [
        {
            "if": {"properties": {"kind": {"const": name}}, "required": ["kind"]},
            "then": {
                "properties": {"params": schema},
                "required": ["params"] if name in needing else [],
            },
        }
        for name, schema in sorted(params.items())
    ]


def _params(make: Callable[..., object]) -> Schema:
    """Return the schema of the parameters of a class: of its model, or of its signature."""
    if model := getattr(make, "Params", None):
        known = {name: field.annotation for name, field in model.model_fields.items()}
        needed = [name for name, field in model.model_fields.items() if field.is_required()]
    else:
        variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        found = inspect.signature(make, eval_str=True).parameters.values()
        settable = [one for one in found if one.kind not in variadic and not one.name.startswith("_")]
        known = {one.name: one.annotation for one in settable}
        needed = [one.name for one in settable if one.default is inspect.Parameter.empty]
    properties = {
        name: {"enum": list(get_args(annotation))} if get_origin(annotation) is Literal else {}
        for name, annotation in known.items()
    }
    return {
        "type": "object",
        "properties": properties,
        "required": needed,
        "additionalProperties": False,
    }


def text(schema: Schema) -> str:
    """Return a schema as JSON, each definition in a line of its own."""
    rest = {name: value for name, value in schema.items() if name != "$defs"}
    defs = (f"{json.dumps(name)}: {json.dumps(one)}" for name, one in sorted(schema["$defs"].items()))
    return json.dumps(rest)[:-1] + ', "$defs": {\n' + ",\n".join(defs) + "\n}}\n"


if __name__ == "__main__":
    sys.stdout.write(text(config_schema()))
