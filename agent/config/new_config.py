"""A configuration for a corpus of one's own: the one that the project ships, with another corpus."""

import re
from importlib import resources
from pathlib import Path

import yaml

from agent.config.sections import CorpusSpec

TEMPLATE = "template.yaml"
"""The shipped `serve_config.yaml`."""

SCHEMA = Path(__file__).with_name("schema.json")
"""The JSON Schema of a configuration file; `agent.config.schema` makes it."""

_CORPUS = re.compile(r"^( +)corpus: .*\n", re.MULTILINE)


def render_config(corpus: CorpusSpec) -> str:
    """Return a Ray Serve configuration for a corpus, with a home of its own, so with a log of its own.

    Args:
        corpus: A path is written as an absolute one.
    """
    text = resources.files("agent.config").joinpath(TEMPLATE).read_text(encoding="utf-8")
    source = corpus.source if corpus.source == "stdlib" else str(Path(corpus.source).expanduser().absolute())

    def section(found: re.Match[str]) -> str:
        mapping = {"name": corpus.name, "source": source}
        written = yaml.safe_dump(mapping, default_flow_style=True, sort_keys=False, width=10_000)
        return f"{found[1]}home: ~/.armwise/{corpus.name}\n{found[1]}corpus: {written}"

    return _CORPUS.sub(section, text.replace(f"agent/config/{SCHEMA.name}", str(SCHEMA), 1), count=1)
