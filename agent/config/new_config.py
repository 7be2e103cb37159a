"""A configuration for a corpus of one's own: the one that the project ships, with another corpus."""

import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from agent.config.sections import CorpusSpec

TEMPLATE = "template.yaml"
"""The shipped `serve_config.yaml`."""

SCHEMA = Path(__file__).with_name("schema.json")
"""The JSON Schema of a configuration file; `agent.config.schema` makes it."""

_CORPUS = re.compile(r"^( +)corpus: .*\n", re.MULTILINE)

_LLM = re.compile(r"(?:^ +# .*\n)+^( +)llm: .*\n +answering: .*\n", re.MULTILINE)

_HOME = """
Corpus, indexes and, unless log_url names another place, the log: no other service may have this folder.
"""

_LOG = """
Where decisions and feedback are kept. A password does not stand here: it is in PGPASSFILE, or the whole URL
in the file that ARMWISE_LOG_URL_FILE names.
"""

_ENDPOINT = """
api_key_env names the variable that holds the key. What a token costs is usd_per_kilotoken_in and ..._out.
"""


_IN_PROCESS = "Runs in the deployment Generator. How long answers may be: answering, limits."


def render_config(
    corpus: CorpusSpec, llm: Mapping[str, Any] | None = None, log_url: str | None = None
) -> str:
    """Return a Ray Serve configuration for a corpus, with a home of its own, so with a log of its own.

    Args:
        corpus: A path is written as an absolute one.
        llm: The language model; None for the one of the shipped configuration.
        log_url: Where the log is; None is a file in the home.
    """
    text = resources.files("agent.config").joinpath(TEMPLATE).read_text(encoding="utf-8")
    source = corpus.source if corpus.source == "stdlib" else str(Path(corpus.source).expanduser().absolute())

    def section(found: re.Match[str]) -> str:
        lines = [*_comment(_HOME), f"home: ~/.armwise/{corpus.name}"]
        lines += [f"corpus: {_flow({'name': corpus.name, 'source': source})}"]
        if log_url is not None:
            lines += [*_comment(_LOG), f"log_url: {_flow(log_url)}"]
        return "".join(f"{found[1]}{line}\n" for line in lines)

    text = _CORPUS.sub(section, text.replace(f"agent/config/{SCHEMA.name}", str(SCHEMA), 1), count=1)
    if llm is None:
        return text
    lines = [*_comment(_ENDPOINT if llm["engine"] == "openai" else _IN_PROCESS), f"llm: {_flow(dict(llm))}"]
    return _LLM.sub(lambda found: "".join(f"{found[1]}{line}\n" for line in lines), text, count=1)


def _flow(value: object) -> str:
    """Return a value as YAML in one line."""
    written = yaml.safe_dump(
        value, default_flow_style=True, sort_keys=False, width=10_000, allow_unicode=True
    )
    return written.removesuffix("...\n").strip()


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in text.strip().splitlines()]
