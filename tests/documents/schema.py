"""The JSON Schema of a configuration file, by which editors complete and check it.

Conditions across keys, such as that the backbone of an arm exists, are checked by `armwise doctor`.
"""

import json
from collections.abc import Collection, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.json_schema import GenerateJsonSchema, models_json_schema
from typing_extensions import override

from armwise.agent.config.app_config import AppConfig
from armwise.agent.policies import POLICIES
from armwise.agent.routers import ROUTERS
from armwise.agent.spec import find_params
from armwise.arms.retrievers import catalog
from armwise.number import with_bounds

DIALECT = "https://json-schema.org/draft/2020-12/schema"

Schema = dict[str, Any]

OWN_CLASS: Schema = {"type": "string", "pattern": r"^[^:\s]+:[^:\s]+$"}
"""The import path of a user's arm."""


class NoParameters(BaseModel):
    """The parameters of every kind that has none."""

    model_config = ConfigDict(extra="forbid")


class _Untitled(GenerateJsonSchema):
    """Leaves out titles, which repeat the names of keys, and types that cannot occur in a file."""

    @override
    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> Any:
        """Allow any value for a type that no file holds, such as a policy, which is built of a spec."""
        return {}

    @override
    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def config_schema() -> Schema:
    """Return the schema of a Ray Serve configuration with one application, this service."""
    kinds: dict[str, dict[str, type[BaseModel]]] = {
        "ArmSpec": {name: kind.params for name, kind in catalog.KINDS.items()},
        "PolicySpec": {name: find_params(policy) for name, policy in POLICIES.items()},
        "RouterPlan": {name: find_params(router) for name, router in ROUTERS.items()},
    }
    for params in kinds.values():
        params.update({name: NoParameters for name, model in params.items() if not model.model_fields})
    models: list[type[BaseModel]] = [
        AppConfig,
        *(model for params in kinds.values() for model in params.values()),
    ]
    places, joint_schema = models_json_schema(
        [(model, "validation") for model in dict.fromkeys(models)], schema_generator=_Untitled
    )
    defs: dict[str, Schema] = with_bounds(joint_schema["$defs"])
    args = defs["AppConfig"]
    args["required"].remove("arms")
    del args["properties"]["arms"]["minProperties"]
    args["anyOf"] = [{"required": ["arms"]}, {"required": ["portfolio"]}]
    defs["EmbeddedSpec"]["required"] = ["engine"]  # the key by which the engines differ
    for spec, params in kinds.items():
        schemas = {name: places[model, "validation"] for name, model in params.items()}
        needing = {name for name, model in params.items() if _needs(model)}
        _by_kind(defs[spec], schemas, needing, OWN_CLASS if spec == "ArmSpec" else None)
    application = {
        "type": "object",
        "required": ["args"],
        "properties": {
            "import_path": {"enum": ["armwise.agent.app:build", "agent.app:build"]},
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


def _needs(model: type[BaseModel]) -> bool:
    """Return whether a kind has a parameter without a default."""
    return any(field.is_required() for field in model.model_fields.values())


def _by_kind(
    spec: Schema, params: Mapping[str, Schema], needing: Collection[str], other: Schema | None = None
) -> None:
    """Let the schema of a kind name the kinds, and that of its parameters those of each, or of several."""
    kind, known = spec["properties"]["kind"], {"enum": sorted(params)}
    kind.update({"anyOf": [known, other]} if other else known)
    sharing: dict[str, list[str]] = {}
    for name, schema in sorted(params.items()):
        sharing.setdefault(json.dumps(schema), []).append(name)
    spec["allOf"] = [
        {
            "if": {"properties": {"kind": {"enum": names}}, "required": ["kind"]},
            "then": {
                "properties": {"params": json.loads(schema)},
                "required": ["params"] if names[0] in needing else [],
            },
        }
        for schema, names in sharing.items()
    ]


def page() -> str:
    """Return the schema as JSON, each definition in a line of its own."""
    schema = config_schema()
    rest = {name: value for name, value in schema.items() if name != "$defs"}
    defs = (
        f"{json.dumps(name)}: {json.dumps(definition)}"
        for name, definition in sorted(schema["$defs"].items())
    )
    return json.dumps(rest)[:-1] + ', "$defs": {\n' + ",\n".join(defs) + "\n}}\n"
