"""The text of a configuration, as `armwise init` and `armwise serve` write it: the shipped one, changed.

Comments stay: parts of the text are replaced, not of a document.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import yaml

from armwise.arms.places import located

TEMPLATE, EXAMPLE = "template.yaml", "example.yaml"
"""The configurations of one corpus and of several, in `armwise.agent.config`."""

SCHEMA = Path(__file__).parents[1] / "config" / "schema.json"
"""The JSON Schema of a configuration file, generated from the classes of the settings."""

TYPICAL_TOKENS = (1000, 300)
"""Tokens that a typical answer reads and writes, by which a dollar is weighed against a search."""

_TITLE = re.compile(r"^# An example .*\n", re.MULTILINE)

_CORPUS = re.compile(r"^( +)corpus: .*\n", re.MULTILINE)

_CORPORA = re.compile(r"(?:^ +# .*\n)+^( +)corpora:\n(?:\1  \w+: .*\n)+", re.MULTILINE)

_ARMS = re.compile(r"^( +)arms:\n((?:\1  [\w-]+: .*\n)+)", re.MULTILINE)

_LLM = re.compile(r"(?:^ +# .*\n)+^( +)llm: .*\n +answering: .*\n", re.MULTILINE)

_WRITTEN_LLM = re.compile(r"^( +)llm: \{.*\n", re.MULTILINE)

_COST = re.compile(r"^( +)cost: \{steps: 1\.0\}\n", re.MULTILINE)

_CLIP = re.compile(r"^( +)clip: .*\n", re.MULTILINE)

_HOME = """
Corpus, indexes and, unless log_url names another place, the log: no other service may have this folder.
"""

_LOG = """
Where decisions and feedback are kept. A password does not stand here: it is in PGPASSFILE, or the whole URL
in the file that ARMWISE_LOG_URL_FILE names.
"""

_ENDPOINT = """
api_key_env names the variable that holds the key. A known model has the price of a list; set another with
usd_per_kilotoken_in and ..._out, or `usd: 0` if the model costs nothing.
"""

_IN_PROCESS = "Runs in the deployment Generator. How long answers may be: answering, limits."

_SOURCES = """
The sources. Each may be a file, a folder of documents, or what every interpreter has: `stdlib`, `language`.
"""

_MODELS = "Further models of the endpoint. An arm is one way to search and one model: pipelines."

_PIPELINES = "Every way to search with every model; `default` is that of `llm`."


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
) -> str:
    """Return a Ray Serve configuration with a separate home, and so a separate log.

    Args:
        corpora: One corpus, or several, among which the policy chooses; paths are made absolute.
        llm: The language model; None: that of the template.
        log_url: URL of the log; None: a file in the home.
        llms: Further models by name, each with an arm for every way to search.
    """
    home = [*_comment(_HOME), f"home: ~/.armwise/{'-'.join(corpus.name for corpus in corpora)[:100]}"]
    log = [] if log_url is None else [*_comment(_LOG), f"log_url: {_flow(log_url)}"]
    if len(corpora) == 1:
        text = read_bundled(TEMPLATE)
        single = f"corpus: {_flow({'name': corpora[0].name, 'source': located(corpora[0].source)})}"
        text = _replace(_CORPUS, text, [*home, single, *log])
    else:
        text = _TITLE.sub(
            "# The service over several sources, as `armwise serve` and `serve run` read it.\n",
            read_bundled(EXAMPLE),
            count=1,
        )
        sources = [f"  {corpus.name}: {_flow({'source': located(corpus.source)})}" for corpus in corpora]
        text = _replace(_CORPORA, text, [*home, *_comment(_SOURCES), "corpora:", *sources, *log])
        text = _replace(_ARMS, text, ["arms:", *(line for corpus in corpora for line in _arms(corpus.name))])
    text = text if llm is None else replace_llm(text, llm)
    return _with_models(text, llm or {}, llms) if llms else text


def replace_llm(text: str, llm: Mapping[str, Any]) -> str:
    """Return the text of a bundled configuration with another language model."""
    about = _comment(_ENDPOINT if llm["engine"] == "openai" else _IN_PROCESS)
    return _replace(_LLM, text, [*about, f"llm: {_flow(dict(llm))}"])


def _arms(source: str) -> list[str]:
    """Return the lines of the arm of a source, which is searched by words and by vectors."""
    words, near = f"{source}_words", f"{source}_near"
    return [
        f"  {words}: {{kind: bm25, corpus: {source}, action: false}}",
        f"  {near}: {{kind: dense, corpus: {source}, params: {{backbone: minilm}}, action: false}}",
        f"  {source}: {{kind: rrf, params: {{arms: [{words}, {near}]}}}}",
    ]


def _with_models(text: str, llm: Mapping[str, Any], llms: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a configuration with an arm for each way to search and each model."""
    match = _ARMS.search(text)
    assert match is not None
    arms: dict[str, dict[str, Any]] = yaml.safe_load(match[2])
    searches = [name for name, spec in arms.items() if spec.get("action", True)]
    lines = [f"  {name}: {_flow({**spec, 'action': False})}" for name, spec in arms.items()]
    grid = _flow({"retrieval": searches, "llm": ["default", *llms]})
    text = _replace(_ARMS, text, ["arms:", *lines, *_comment(_PIPELINES), "pipelines:", f"  - {grid}"])
    models = [f"  {name}: {_flow(dict(settings))}" for name, settings in llms.items()]
    written = _WRITTEN_LLM.search(text)
    assert written is not None
    own = written[0].strip()
    text = _replace(_WRITTEN_LLM, text, [own, *_comment(_MODELS), "llms:", *models])
    usd = {name: _price(settings) for name, settings in {"default": llm, **llms}.items()}
    dearest = max(usd, key=lambda name: usd[name])
    if not usd[dearest]:
        return text
    read, wrote = TYPICAL_TOKENS
    about = (
        f"# an answer of `{dearest}` of {read:,} tokens read and {wrote} written costs .1; raise usd to save"
    )
    text = _replace(_COST, text, [about, f"cost: {{steps: 1.0, usd: {float(f'{2 / usd[dearest]:.2g}'):g}}}"])
    return _replace(_CLIP, text, ["clip: [-0.3, 1]  # what two searches and two such answers cost"])


def _price(llm: Mapping[str, Any]) -> float:
    """Return the dollars of a typical answer; 0 without prices, and for the model of the template."""
    from pydantic import TypeAdapter

    from armwise.arms.llm import LlmSpec, catalog

    if not llm:
        return 0.0
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
