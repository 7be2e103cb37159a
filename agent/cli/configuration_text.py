"""The text of a configuration, as `armwise init` and `armwise serve` write it: the shipped one, changed.

Comments stay: parts of the text are replaced, not of a document.
"""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import yaml

from armwise.arms.places import locate_source

TEMPLATE, EXAMPLE, MODELS = "template.yaml", "example.yaml", "models.yaml"
"""Configurations of `armwise.agent.config`: one corpus, several, and models without documents."""

SCHEMA = Path(__file__).parents[1] / "config" / "schema.json"
"""The JSON Schema of a configuration file, generated from the classes of the settings."""

TYPICAL_TOKENS = (1000, 300)
"""Tokens that a typical answer reads and writes."""

WORTH = 0.01
"""Dollars that a right answer is worth until the operator says otherwise."""

_TITLE = re.compile(r"^# An example .*\n", re.MULTILINE)

_CORPUS = re.compile(r"^( +)corpus: .*\n", re.MULTILINE)

_CORPORA = re.compile(r"(?:^ +# .*\n)+^( +)corpora:\n(?:\1  \w+: .*\n)+", re.MULTILINE)

_ARMS = re.compile(r"^( +)arms:\n((?:\1  [\w.-]+: .*\n)+)", re.MULTILINE)

_HOME_PLACE = re.compile(r"^( +)home: .*\n", re.MULTILINE)

_LLM = re.compile(r"(?:^ +# .*\n)+^( +)llm: .*\n +answering: .*\n", re.MULTILINE)

_WRITTEN_LLM = re.compile(r"^( +)llm: \{.*\n", re.MULTILINE)

_COST = re.compile(r"^( +)cost: \{steps: 1\.0\}\n", re.MULTILINE)

_CLIP = re.compile(r"^( +)clip: .*\n", re.MULTILINE)

_WARM_START = re.compile(r"(?:^ +# .*\n)+^( +)warm_start:\n(?:\1  .*\n)+\n", re.MULTILINE)

_HOME = """
This folder holds the corpus, the indexes and, without log_url, the log. Each service needs its own folder.
"""

_LOG = """
The database for decisions and feedback. Keep its password out of this file: put it into PGPASSFILE, or the
whole URL into the file that ARMWISE_LOG_URL_FILE names.
"""

_ENDPOINT = """
api_key_env names the environment variable with the API key. Armwise knows the prices of common models. To set
another price, use usd_per_kilotoken_in and usd_per_kilotoken_out, or `usd: 0` if the model costs nothing.
"""

_IN_PROCESS = "The model runs on this machine. `answering` and `limits` bound the length of answers."

_SOURCES = """
A source is a file, a folder of documents, or a part of Python's documentation (`stdlib`, `language`).
"""

_MODELS = "All models by name, including `llm` from above."

_PIPELINES = "One arm for each combination of source and model."


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


def read_bundled(name: str) -> str:
    """Return the text of a shipped configuration, with the place of its schema."""
    text = SCHEMA.with_name(name).read_text(encoding="utf-8")
    return text.replace(f"agent/config/{SCHEMA.name}", str(SCHEMA), 1)


def render_config(
    corpora: Sequence[NamedSource],
    llm: Mapping[str, Any] | None = None,
    log_url: str | None = None,
    llms: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    worth: float = WORTH,
    home: str | None = None,
) -> str:
    """Return a Ray Serve configuration with a separate home, and so a separate log.

    Args:
        corpora: One corpus, or several, among which the policy chooses; paths are made absolute. None: the
            models answer without documents.
        llm: The language model; None: that of the template.
        log_url: URL of the log; None: a file in the home.
        llms: All models by name, `llm` among them, where there are several; each is an arm with every source.
        worth: Dollars that a right answer is worth.
        home: Folder for the data; None: one below `~/.armwise`, named after the corpora.
    """
    name = "-".join(corpus.name for corpus in corpora)[:100] or "models"
    place = [*_comment(_HOME), f"home: {_flow(home or f'~/.armwise/{name}')}"]
    log = [] if log_url is None else [*_comment(_LOG), f"log_url: {_flow(log_url)}"]
    if not corpora:
        text = _replace(_HOME_PLACE, read_bundled(MODELS), [*place, *log])
    elif len(corpora) == 1:
        text = read_bundled(TEMPLATE)
        single = f"corpus: {_flow({'name': corpora[0].name, 'source': locate_source(corpora[0].source)})}"
        text = _replace(_CORPUS, text, [*place, single, *log])
        if llms:  # all arms find the same passages: what is found says nothing of the models
            text = _WARM_START.sub("", text)
            text = _replace(_ARMS, text, ["arms:", *_arms(corpora[0].name, named=False)])
    else:
        text = _TITLE.sub(
            "# The service over several sources, as `armwise serve` and `serve run` read it.\n",
            read_bundled(EXAMPLE),
            count=1,
        )
        sources = [
            f"  {corpus.name}: {_flow({'source': locate_source(corpus.source)})}" for corpus in corpora
        ]
        text = _replace(_CORPORA, text, [*place, *_comment(_SOURCES), "corpora:", *sources, *log])
        text = _replace(_ARMS, text, ["arms:", *(line for corpus in corpora for line in _arms(corpus.name))])
    text = text if llm is None else replace_llm(text, llm)
    return _with_models(text, llms, worth, searches=bool(corpora)) if llms else text


def replace_llm(text: str, llm: Mapping[str, Any]) -> str:
    """Return the text of a bundled configuration with another language model."""
    about = _comment(_IN_PROCESS if llm["engine"] in ("embedded", "vllm") else _ENDPOINT)
    return _replace(_LLM, text, [*about, f"llm: {_flow(dict(llm))}"])


def _arms(source: str, *, named: bool = True) -> list[str]:
    """Return the lines of the arm of a source, which is searched by words and by vectors.

    Args:
        source: Name of the corpus.
        named: Whether the arms name the corpus, since there are several.
    """
    words, near, of = f"{source}_words", f"{source}_near", f", corpus: {source}" if named else ""
    return [
        f"  {words}: {{kind: bm25{of}, action: false}}",
        f"  {near}: {{kind: dense{of}, params: {{backbone: minilm}}, action: false}}",
        f"  {source}: {{kind: rrf, params: {{arms: [{words}, {near}]}}}}",
    ]


def _with_models(text: str, llms: Mapping[str, Mapping[str, Any]], worth: float, *, searches: bool) -> str:
    """Return a configuration with an arm for each source and each model, or for each model alone."""
    usd = {name: _price(settings) for name, settings in llms.items()}
    dearest = max(reversed(usd), key=lambda name: usd[name])
    if searches:
        match = _ARMS.search(text)
        assert match is not None
        arms: dict[str, dict[str, Any]] = yaml.safe_load(match[2])
        sources = [name for name, spec in arms.items() if spec.get("action", True)]
        lines = [f"  {name}: {_flow({**spec, 'action': False})}" for name, spec in arms.items()]
        grid = _flow({"retrieval": sources, "llm": [*llms]})
        lines += [*_comment(_PIPELINES), "pipelines:", f"  - {grid}"]
    else:
        lines = [f"  {name}: {_flow({'kind': 'none', 'answering': {'llm': name}})}" for name in llms]
        lines.append(f"fallback: {dearest}  # answers if the drawn model fails")
    text = _replace(_ARMS, text, ["arms:", *lines])
    first = next(iter(llms))
    shared = [f"  {first}: *first", *(f"  {name}: {_flow(dict(llms[name]))}" for name in [*llms][1:])]
    written = _WRITTEN_LLM.search(text)
    assert written is not None
    own = written[0].strip().replace("llm: ", "llm: &first ", 1)
    text = _replace(
        _WRITTEN_LLM, text, [own, *_comment(_MODELS), "llms:", *shared, f"answering: {{llm: {first}}}"]
    )
    if not usd[dearest]:
        return text
    read, wrote = TYPICAL_TOKENS
    lost = usd[dearest] / worth
    about = (
        f"# What a right answer is worth to you, in dollars. At {worth:g}, an answer of `{dearest}` with",
        f"# {read:,} tokens in and {wrote} out (${usd[dearest]:.2g}) lowers its reward by {lost:.2g}.",
    )
    text = _replace(_COST, text, ["cost: {steps: 1.0}", *about, f"worth: {worth:g}"])
    lowest = -min(1.0, math.ceil(10 * (0.1 + 2 * lost)) / 10)
    return _replace(
        _CLIP, text, [f"clip: [{lowest:g}, 1]  # what two searches and two such answers cost, at most 1"]
    )


def _price(llm: Mapping[str, Any]) -> float:
    """Return the dollars of a typical answer; 0 without prices."""
    from pydantic import TypeAdapter

    from armwise.arms.llm import LlmSpec, catalog

    return catalog.find_prices(TypeAdapter(LlmSpec).validate_python(llm)).compute_usd(*TYPICAL_TOKENS)


def _replace(pattern: re.Pattern[str], text: str, lines: Sequence[str]) -> str:
    """Return a text with lines, as deep as its first group, in place of the first match."""
    return pattern.sub(lambda match: "".join(f"{match[1]}{line}\n" for line in lines), text, count=1)


def _flow(value: object) -> str:
    """Return a value as YAML in one line."""
    written = yaml.safe_dump(
        value, default_flow_style=True, sort_keys=False, width=10_000, allow_unicode=True
    )
    return written.removesuffix("...\n").strip()


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in text.strip().splitlines()]
