"""The text of a configuration, as `armwise init` and `armwise serve` write it, with comments."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import yaml

from armwise.arms.places import locate_source

SCHEMA = Path(__file__).parents[1] / "config" / "schema.json"
"""The JSON Schema of a configuration file, generated from the classes of the settings."""

TYPICAL_TOKENS = (1000, 300)
"""Tokens that a typical answer reads and writes."""

WORTH = 0.01
"""Dollars that a right answer is worth until the operator says otherwise."""


class NamedSource(Protocol):
    """A corpus of a configuration."""

    @property
    def name(self) -> str:
        """Name of the corpus."""
        ...

    @property
    def source(self) -> str:
        """Where its passages come from."""
        ...


def render_config(
    corpora: Sequence[NamedSource],
    llm: Mapping[str, Any] | None = None,
    log_url: str | None = None,
    llms: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    worth: float = WORTH,
    home: str | None = None,
    port: int = 8000,
) -> str:
    """Return a Ray Serve configuration with a separate home, and so a separate log.

    Args:
        corpora: One corpus, or several, among which the policy chooses; paths are made absolute. None: the
            models answer without documents.
        llm: The language model; None: the one of the package.
        log_url: URL of the log; None: a file in the home.
        llms: All models by name, `llm` first, where there are several; each is an arm with every source.
        worth: Dollars that a right answer is worth.
        home: Folder for the data; None: one below `~/.armwise`, named after the corpora.
        port: Port on 127.0.0.1.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    llms = llms or {}
    sources = [{"name": each.name, "source": locate_source(each.source)} for each in corpora]
    names = [each.name for each in corpora]
    usd = {name: _price(settings) for name, settings in llms.items()}
    dearest = max(reversed(usd), key=lambda name: usd[name]) if usd else None
    typical = 0.0 if dearest is None else usd[dearest]
    lost, (read, wrote) = typical / worth, TYPICAL_TOKENS
    least = math.ceil(10 * (0.1 + 2 * lost)) / 10 if typical else 0.05 if len(names) > 1 else 0.1
    environment = Environment(  # it writes YAML, whose values `flow` quotes # nosec B701
        loader=FileSystemLoader(SCHEMA.parent),
        trim_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    environment.filters["flow"] = _flow
    return environment.get_template("service.yaml.jinja").render(
        schema=str(SCHEMA),
        home=home or f"~/.armwise/{'-'.join(names)[:100] or 'models'}",
        log_url=log_url,
        port=port,
        sources=sources,
        llm=llm,
        llms=llms,
        arms=_list_arms(names, llms),
        grid={"retrieval": names, "llm": [*llms]},
        dearest=dearest,
        typical_usd=f"{typical:.2g}" if typical else "",
        typical_tokens=f"{read:,} tokens in and {wrote} out",
        worth=f"{worth:g}",
        lost=f"{lost:.2g}",
        lowest=f"{-min(1.0, least):g}",
        warm=bool(names) and not (llms and len(names) == 1),  # else all arms find the same passages
    )


def _list_arms(sources: Sequence[str], llms: Mapping[str, object]) -> dict[str, dict[str, Any]]:
    """Return the arms: of each model without a source, else of each source, searched by words and vectors."""
    if not sources:
        models = {name: {"kind": "none", "answering": {"llm": name}} for name in llms}
        return models or {"only": {"kind": "none"}}
    if len(sources) == 1 and not llms:
        near = {"kind": "dense", "params": {"backbone": "minilm"}}
        return {
            "bm25": {"kind": "bm25"},
            "dense": near,
            "rrf": {"kind": "rrf", "params": {"arms": ["bm25", "dense"]}},
        }
    arms: dict[str, dict[str, Any]] = {}
    for source in sources:
        words, near_name = f"{source}_words", f"{source}_near"
        of = {"corpus": source} if len(sources) > 1 else {}
        arms[words] = {"kind": "bm25", **of, "action": False}
        arms[near_name] = {"kind": "dense", **of, "params": {"backbone": "minilm"}, "action": False}
        arms[source] = {"kind": "rrf", "params": {"arms": [words, near_name]}}
        if llms:
            arms[source]["action"] = False
    return arms


def _price(llm: Mapping[str, Any]) -> float:
    """Return the dollars of a typical answer; 0 without prices."""
    from pydantic import TypeAdapter

    from armwise.arms.llm import LlmSpec, catalog

    return catalog.find_prices(TypeAdapter(LlmSpec).validate_python(llm)).compute_usd(*TYPICAL_TOKENS)


def _flow(value: object) -> str:
    """Return a value as YAML in one line."""
    written = yaml.safe_dump(
        value, default_flow_style=True, sort_keys=False, width=10_000, allow_unicode=True
    )
    return written.removesuffix("...\n").strip()
