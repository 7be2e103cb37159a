"""The reference of every setting, written from the settings themselves.

`python -m agent.config.reference > docs/reference/configuration.md` writes it anew; a test
fails when it is behind.
"""

import inspect
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from agent.config.app_config import AppConfig
from agent.policies import catalog as policy_catalog
from agent.routers import catalog as router_catalog
from agent.spec import models_in, tags_of
from arms.portfolio import PoolSpec
from arms.retrievers import ArmSpec, catalog

INTRODUCTION = """# Configuration

The service is one application of a Ray Serve configuration file; `serve_config.yaml` is the one it comes
with. What stands under `args` is listed here. Everything outside `args` (the address, the number of
replicas of each deployment) is Ray Serve's own.

A key that is not known is an error that names the nearest right one. This page is written by
`python -m agent.config.reference`.
"""


def pages() -> Iterator[str]:
    """Yield the lines of the reference."""
    yield INTRODUCTION
    yield from _section("args", AppConfig, set())
    yield "## Kinds of arms"
    yield ""
    yield "`kind` of an arm, with its `params`. A class of your own is `package.module:Class`; it is built as"
    yield "`Class(name=name, **params)` and must satisfy `arms.base.Arm`."
    yield ""
    for name, kind in catalog.KINDS.items():
        yield f"### {name}"
        yield ""
        yield from _table(kind.params)
        for field, inner in kind.params.model_fields.items():
            for model in models_in(inner.annotation):
                yield f"#### {name}.{field}"
                yield ""
                yield from _table(model)
    yield "## Pools"
    yield ""
    yield "A file that `armwise score --pool` reads, such as `examples/pool.yaml`. Every arm of its grids"
    yield "is scored; its `backbones` are written as in the configuration."
    yield ""
    yield from _section("pool", PoolSpec, {ArmSpec})
    yield "## Kinds of policies"
    yield ""
    for name, policy in policy_catalog.POLICIES.items():
        yield f"### {name}"
        yield ""
        yield (inspect.getdoc(policy) or "").splitlines()[0]
        yield ""
        yield from _parameters(policy)
    yield "## Kinds of routers"
    yield ""
    yield "`armwise train --router KIND`, or `--spec FILE` with `kind` and `params`."
    yield ""
    for name, router in router_catalog.ROUTERS.items():
        yield f"### {name}"
        yield ""
        yield (inspect.getdoc(router) or "").splitlines()[0]
        yield ""
        if params := getattr(router, "Params", None):
            yield from _table(params)


def _section(title: str, model: type[BaseModel], seen: set[type[BaseModel]]) -> Iterator[str]:
    seen.add(model)
    yield f"## {title}"
    yield ""
    yield (model.__doc__ or "").strip().splitlines()[0]
    yield ""
    yield from _table(model)
    for name, field in model.model_fields.items():
        for inner in models_in(field.annotation):
            if inner not in seen:
                many = ".*" if get_origin(field.annotation) is dict else ""
                own = "".join(f", {key} {value}" for key, value in tags_of(inner).items())
                yield from _section(f"{title}.{name}{many}{own}".removeprefix("args."), inner, seen)


def _parameters(build: Callable[..., object]) -> Iterator[str]:
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    known = inspect.signature(build).parameters.values()
    settable = [p for p in known if p.kind not in variadic and not p.name.startswith("_")]
    if settable:
        yield "| key | default |"
        yield "| --- | --- |"
        for parameter in settable:
            default = parameter.default
            shown = "required" if default is inspect.Parameter.empty else f"`{json.dumps(default)}`"
            yield f"| `{parameter.name}` | {shown} |"
        yield ""
    for parameter in settable:
        if get_origin(parameter.annotation) is Literal:
            choices = ", ".join(f"`{choice}`" for choice in get_args(parameter.annotation))
            yield f"`{parameter.name}` is one of {choices}."
            yield ""


def _table(model: type[BaseModel]) -> Iterator[str]:
    if not model.model_fields:
        yield "Nothing to set."
        yield ""
        return
    yield "| key | default | what it is |"
    yield "| --- | --- | --- |"
    for name, field in model.model_fields.items():
        yield f"| `{name}` | {_default(field)} | {field.description or _first_line(field)} |"
    yield ""


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value: Any = field.get_default(call_default_factory=True, validated_data={})
    if value is PydanticUndefined or isinstance(value, BaseModel):
        return "see below"
    return f"`{json.dumps(value, default=str)}`"


def _first_line(field: FieldInfo) -> str:
    inner = models_in(field.annotation)
    return (inner[0].__doc__ or "").splitlines()[0] if inner else ""


if __name__ == "__main__":
    sys.stdout.write("\n".join(pages()).rstrip() + "\n")
