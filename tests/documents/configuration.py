"""Generates the reference of every setting from the settings classes: a page a subject.

These are `docs/reference/configuration.md`, the pages of the folder `configuration` beside it, and the table
of estimators in a page that is written by hand.
"""

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from armwise.agent.config.app_config import AppConfig
from armwise.agent.policies import POLICIES
from armwise.agent.routers import ROUTERS
from armwise.agent.spec import choices_in, find_params, list_tags
from armwise.arms.lab.portfolio import PoolSpec
from armwise.arms.llm.writing import WritingSpec
from armwise.arms.profile import ProfileSpec
from armwise.arms.retrievers import ArmSpec, catalog
from armwise.feedback.ope import estimators_table
from tests.documents.tables import with_table

DOCUMENTS = Path(__file__).resolve().parents[2] / "docs" / "reference"

INDEX = "configuration.md"

INTRODUCTION = """# Configuration

You configure Armwise in one file, by default `serve_config.yaml`. It is a Ray Serve configuration with one
application. These pages describe the keys under that application's `args`:

```yaml title="serve_config.yaml"
applications:
  - name: armwise
    route_prefix: /
    import_path: armwise.agent.app:build
    args:
      policy: {kind: adaptive}
      limits: {in_flight: 32}
```

Keys outside `args`, such as the address and the number of replicas, belong to Ray Serve.

## Read an entry

Each entry begins with a key and its default. If only some values are permitted, they follow in parentheses.
Null switches a setting off, unless its description says otherwise. Durations follow ISO 8601: `PT30M` is 30
minutes.

In headings, `*` stands for a name that you choose. The section `llm, engine openai` describes the keys of an
`llm` with `engine: openai`.

## Environment variables

You can also set a key in an environment variable, which takes precedence over the file. The variable's name
is `ARMWISE_` plus the keys in capitals, with two underscores between levels:

```bash
export ARMWISE_LIMITS__IN_FLIGHT=32            # limits: {in_flight: 32}
export ARMWISE_HOSTS='[api.example.com]'       # values are read as YAML
export ARMWISE_LOG_URL_FILE=/run/secrets/url   # _FILE reads the value from a file
```

If a key contains a character that is not a letter or digit, write an underscore instead. If the setting is a
string, Armwise uses the variable's value unchanged. Armwise refuses an unknown variable and suggests the
closest known one.

## Secrets

Keep secrets in environment variables or files, never in the configuration. Keys such as `llm.api_key_env`
hold the name of a variable, for example `OPENAI_API_KEY`. If that variable is not set, the service reads the
file that `OPENAI_API_KEY_FILE` names.

## Relative paths

A path in the file is relative to the file's folder. A path in an environment variable is relative to the
current folder. If you start the service with Ray's own `serve run` or `serve deploy`, both are relative to
the current folder. Armwise does not change paths in the parameters of your own arm class.

## Check the file

Run `armwise doctor` to check the whole file. It reports each unknown key, and suggests the closest valid one.

An editor with a YAML language server can complete keys and check values. To set this up, begin the file with
`# yaml-language-server: $schema=agent/config/schema.json`. `armwise doctor --schema` prints that JSON Schema.
"""

SUBJECTS = {
    "service": (
        "The service",
        "access, privacy, corpora, limits, the chat page, telemetry and digests",
        (
            *(
                "keys",
                "privacy",
                "corpus",
                "corpora",
                "limits",
                "chat",
                "retrieval_cache",
                "http",
                "telemetry",
            ),
            "digest",
        ),
    ),
    "arms": (
        "Arms and language models",
        "what the policy chooses from, which models answer, and how answers are generated",
        ("backbones", "arms", "pipelines", "llm", "llms", "prompts", "answering"),
    ),
    "learning": (
        "Learning and deciding",
        "how an arm is chosen, what counts as reward, and how the policy learns",
        (
            "policy",
            "features",
            "router",
            "reward",
            "budget",
            "observations",
            "sticky",
            "steps",
            "drift",
            "guard",
            "gate",
            "tap",
        ),
    ),
    "warm-start": (
        "The warm start",
        "how labels train a candidate policy, before or during traffic",
        ("warm_start",),
    ),
}
"""Title, subject and keys of each page, by file."""

KINDS = {
    "arm-kinds": ("Kinds of arms", "how each kind searches"),
    "policy-kinds": ("Kinds of policies", "how each kind chooses an arm"),
    "router-kinds": ("Kinds of routers", "how each kind scores arms"),
    "pools": ("Pools", "files that describe many arms at once"),
}
"""Title and subject of each page of kinds, by file."""

HUGE = 10_000
"""Bound from which a range is left to the schema."""

LEAST_SHARED = 2
"""Keys that two sections must share for the later one to link the earlier one instead."""

OVERRIDES: dict[type[BaseModel], str] = {WritingSpec: "answering"}
"""Sections, by the settings that override theirs under the same names."""

ELSEWHERE: dict[type[BaseModel], str] = {ProfileSpec: "[features.similarity](learning.md#featuressimilarity)"}
"""Links to the settings that the page of learning has, for the page of arms."""

LONGEST_LIST = 8
"""Numbers of a default that are all shown, even if they are evenly spaced."""

MOST_NAMED = 6
"""Keys that a link names; if it stands for more, and for the whole section, it says "all other keys"."""

Tables = dict[str, dict[str, str]]
"""The description of each key in a section of a page, by the heading of the section."""


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """Return the models inside an annotation, such as the values of a dict."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in getattr(annotation, "__args__", ()) for model in models_in(inner)]


def pages() -> dict[str, str]:
    """Return the pages of the reference by file, relative to the folder of references."""
    contents = {}
    places: dict[str, str] = {}
    documented: set[type[BaseModel]] = {AppConfig}
    for name, (title, about, keys) in SUBJECTS.items():
        tables: Tables = {}
        lines: list[str] = []
        for key in keys:
            sections = [*_sections(key, AppConfig.model_fields[key], documented, tables)]
            if sections:
                places[key] = f"configuration/{name}.md#{_anchor(sections[0].removeprefix('## '))}"
            lines += sections
        contents[f"configuration/{name}.md"] = _page(title, f"These keys control {about}.", lines)
    described = {key for _, _, keys in SUBJECTS.values() for key in keys}
    left = {key for key, field in AppConfig.model_fields.items() if models_in(field.annotation)} - described
    if left:
        raise ValueError(f"{', '.join(sorted(left))}: name the page in SUBJECTS")
    for name, lines in zip(KINDS, (_arms(), _policies(), _routers(), _pools()), strict=True):
        contents[f"configuration/{name}.md"] = _page(KINDS[name][0], "", lines)
    contents["estimators.md"] = _with_table("estimators.md", estimators_table().splitlines())
    return {INDEX: _index(places), **contents}


def _flow(example: Mapping[str, Any]) -> str:
    """Return parameters as YAML in one line."""
    return yaml.safe_dump(dict(example), default_flow_style=True, sort_keys=False, width=1000).strip()


def _with_table(page: str, table: list[str]) -> str:
    """Return a page that is written by hand, relative to the folder of references, with its table."""
    return with_table((DOCUMENTS / page).read_text(encoding="utf-8"), table)


def _page(title: str, about: str, lines: list[str]) -> str:
    head = [f"# {title}", "", *([about, ""] if about else [])]
    return "\n".join([*head, *lines]).rstrip() + "\n"


def _index(places: Mapping[str, str]) -> str:
    """Return the first page; `places` has the section of each key that has one."""
    lines = [INTRODUCTION, "## Pages", ""]
    for name, (title, about, keys) in SUBJECTS.items():
        links = [f"[`{key}`]({places[key]})" for key in keys if key in places]
        more = f" Sections: {', '.join(links)}." if len(links) > 1 else ""
        lines.append(f"- [{title}](configuration/{name}.md): {about}.{more}")
    lines += [f"- [{title}](configuration/{name}.md): {about}." for name, (title, about) in KINDS.items()]
    lines += ["", "## args", "", "These keys of `args` are described only here:", ""]
    lines += [line for key, line in _lines(AppConfig).items() if key not in places]
    return "\n".join(lines).rstrip() + "\n"


def _arms() -> list[str]:
    light = [f"`{name}`" for name, kind in sorted(catalog.KINDS.own.items()) if kind.light]
    lines = [
        "An arm's `kind` says how it searches. Each section describes a kind and its `params`.",
        "To use your own class, write `kind: package.module:Class`. The class must satisfy",
        "`armwise.arms.base.Arm`. Armwise creates an arm with `Class(name=name, **params)`.",
        "",
        "Some parameters name a folder that `armwise lab train` wrote. Use a new folder each time you train,",
        "because the folder identifies the arm.",
        "",
        f"These kinds are [light](../../guide/arms.md#where-an-arm-runs): {', '.join(light)}.",
        "",
    ]
    tables: Tables = {}
    places = dict(ELSEWHERE)
    for name, kind in sorted(catalog.KINDS.own.items()):
        summary = _summary(kind).replace("](#", "](arms.md#").replace("](", "](../../guide/")
        lines += [f"## {name}", "", summary, ""]
        lines += [*_example(kind.example), *_list(kind.params, name, tables)]
        for field, inner in kind.params.model_fields.items():
            for model in models_in(inner.annotation):
                tags = "".join(f", {key} {', '.join(tag)}" for key, tag in list_tags(model).items())
                title = f"{name}.{field}{tags}"
                if model in places:
                    lines += [f"### {title}", "", f"- All keys: as in {places[model]}.", ""]
                else:
                    places[model] = f"[{title}](#{_anchor(title)})"
                    lines += [f"### {title}", "", _first_sentence(model), "", *_list(model, title, tables)]
    return lines


def _policies() -> list[str]:
    about = [
        "For each question, a policy gives every arm a probability, and Armwise draws an arm accordingly. To",
        "select a kind, write `policy: {kind: KIND, params: {...}}`. Each section describes a kind and its",
        "`params`.",
        "The guide explains [how to choose a",
        "policy](../../guide/policies.md#choose-a-policy). A package can add kinds under the entry point",
        "group `armwise.policies`.",
    ]
    return [*about, "", *_kinds(POLICIES)]


def _routers() -> list[str]:
    about = [
        "A router scores how well each arm would answer a question. To train one on labels, run",
        "`armwise lab train --router KIND`. Each section describes a kind and its parameters. To set",
        "parameters, write the `kind` and its `params` to a file, and pass `--spec FILE`. A package can add",
        "kinds under the entry point group `armwise.routers`.",
    ]
    return [*about, "", *_kinds(ROUTERS)]


def _pools() -> list[str]:
    lines = [
        "A pool is a file that describes many arms as grids of parameters, such as `examples/pool.yaml`.",
        "`armwise lab score --pool` scores every arm. The key `backbones` works as in the configuration.",
        "",
    ]
    return [*lines, *_section("pool", PoolSpec, {ArmSpec}, {}, _first_sentence(PoolSpec))]


def _kinds(catalogue: Mapping[str, Callable[..., object]]) -> Iterator[str]:
    """Yield a section for each kind."""
    tables: Tables = {}
    for name, kind in catalogue.items():
        yield from (f"## {name}", "", _summary(kind), "", *_example(getattr(kind, "example", None) or {}))
        yield from _list(find_params(kind), name, tables)


def _example(example: Mapping[str, Any]) -> list[str]:
    """Return a line with example parameters, if there are any."""
    return [f"Example: `params: {_flow(example)}`", ""] if example else []


def _summary(kind: object) -> str:
    """Return the first line of the docstring of a class."""
    return (inspect.getdoc(kind) or "").splitlines()[0]


def _sections(key: str, field: FieldInfo, documented: set[type[BaseModel]], tables: Tables) -> Iterator[str]:
    """Yield a section for each model of a key of the configuration that has none yet."""
    for model in models_in(field.annotation):
        if model not in documented:
            many = ".*" if get_origin(field.annotation) is dict else ""
            tags = "".join(f", {name} {', '.join(tag)}" for name, tag in list_tags(model).items())
            if "." in key and not tags and not field.description:
                about = ""  # the list that names the key has it
            elif "." in key or tags or not field.description:
                about = _first_sentence(model)
            else:
                about = field.description
            if "." in key and (field.description or "").startswith(about.removeprefix("The ").capitalize()):
                about = ""  # the list that names the key begins with it
            yield from _section(f"{key}{many}{tags}", model, documented, tables, about)


def _section(
    title: str,
    model: type[BaseModel],
    documented: set[type[BaseModel]],
    tables: Tables,
    about: str,
) -> Iterator[str]:
    """Yield a section for a model and those in it, which begins with the sentence `about`."""
    documented.add(model)
    yield from (f"## {title}", "", *([about, ""] if about else []), *_list(model, title, tables))
    for name, field in model.model_fields.items():
        yield from _sections(f"{title}.{name}", field, documented, tables)


def _list(model: type[BaseModel], title: str, tables: Tables) -> list[str]:
    """Return a list of the keys of a model.

    Keys that an earlier section of the page has are replaced by a link to it, if there are several.

    Args:
        model: The settings.
        title: Heading of the section.
        tables: The keys that each section of the page describes, by its heading; this one is added.
    """
    rows = _lines(model)
    if not rows:
        return []
    if overridden := OVERRIDES.get(model):
        return [f"- {', '.join(f'`{key}`' for key in rows)}: as in [{overridden}](#{overridden}).", ""]
    own, links = dict(rows), []
    while True:
        shared = {
            earlier: [key for key, line in rows.items() if shown.get(key) == line]
            for earlier, shown in tables.items()
        }
        best = max(shared, key=lambda earlier: len(shared[earlier]), default="")
        if not best or len(shared[best]) < LEAST_SHARED:
            break
        keys = ", ".join(f"`{key}`" for key in shared[best])
        if len(shared[best]) > MOST_NAMED and tables[best].keys() <= own.keys():
            keys = "All other keys"
        links.append(f"- {keys}: as in [{best}](#{_anchor(best)}).")
        rows = {key: line for key, line in rows.items() if key not in shared[best]}
    tables[title] = own
    return [*rows.values(), *links, ""]


def _anchor(title: str) -> str:
    """Return the anchor of a heading.

    >>> _anchor("llm, engine openai"), _anchor("mcp.fields")
    ('llm-engine-openai', 'mcpfields')
    """
    return "".join(c for c in title.lower().replace(" ", "-") if c.isalnum() or c in "-_")


def _lines(model: type[BaseModel]) -> dict[str, str]:
    """Return an item of a list for each key of a model, without those that the heading names."""
    items = {}
    for name, field in model.model_fields.items():
        if name in list_tags(model):
            continue
        about = field.description or "".join(
            _first_sentence(inner) for inner in models_in(field.annotation)[:1]
        )
        items[name] = f"- {_key(name, field, about)}: {about}"
    return items


def _key(name: str, field: FieldInfo, about: str) -> str:
    """Return a key with its default, as it would be written in the file, and what else it may be."""
    required = field.is_required()
    value: Any = None if required else field.get_default(call_default_factory=True, validated_data={})
    section = value is PydanticUndefined or isinstance(value, BaseModel)
    shown = name if required or section else f"{name}: {_default(value)}"
    more = ", ".join(filter(None, ("required" if required else "", _limits(field, about))))
    return f"`{shown}` ({more})" if more else f"`{shown}`"


def _default(value: object) -> str:
    """Return a value as JSON, and of a long list of evenly spaced numbers the first two and the last.

    >>> _default([0.0, 0.1]), _default([n / 10 for n in range(11)])
    ('[0.0, 0.1]', '[0.0, 0.1, ..., 1.0]')
    """
    text = json.dumps(value, default=str)
    if isinstance(value, (list, tuple)) and len(value) > LONGEST_LIST:
        first, *_, last = value
        step = value[1] - first
        if all(abs(first + n * step - item) < step / 100 for n, item in enumerate(value)):
            return f"[{first}, {value[1]}, ..., {last}]"
    return text


def _limits(field: FieldInfo, about: str) -> str:
    """Return the range of a setting, or its values unless the description names them all."""
    values = _values(field)
    if not values or all(f"`{value}`" in about for value in values):
        return "" if values else _range(field)
    *others, last = (f"`{value}`" for value in values)
    return f"{', '.join(others)} or {last}" if others else ""


def _values(field: FieldInfo) -> tuple[Any, ...]:
    """Return the values of a setting with few of them."""
    choices = [choice for choice in choices_in(field.annotation) if choice is not NoneType]
    if len(choices) != 1:
        return ()
    if get_origin(choices[0]) is Literal:
        return get_args(choices[0])
    if isinstance(choices[0], type) and issubclass(choices[0], Enum):
        return tuple(member.value for member in choices[0])
    return ()


def _range(field: FieldInfo) -> str:
    """Return the range of a number; empty if it only excludes what nobody would write.

    >>> from pydantic import Field
    >>> _range(Field(ge=20)), _range(Field(gt=0.0, lt=1.0)), _range(Field(ge=0, le=1))
    ('at least 20', 'above 0 and below 1', '0 to 1')
    >>> _range(Field(ge=1)), _range(Field(ge=1, le=100_000))
    ('', '')
    """
    found = {
        name: getattr(bound, name)
        for bound in field.metadata
        for name in ("ge", "gt", "le", "lt")
        if hasattr(bound, name) and getattr(bound, name) < HUGE
    }
    bounds = {name: f"{bound:,.10g}" for name, bound in found.items()}
    if len(bounds) == 1 and min(found.values()) <= 1:
        return ""
    if "ge" in bounds and "le" in bounds:
        return f"{bounds['ge']} to {bounds['le']}"
    words = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    return " and ".join(f"{word} {bounds[name]}" for name, word in words.items() if name in bounds)


def _first_sentence(model: type[BaseModel]) -> str:
    return (model.__doc__ or "").strip().splitlines()[0]
