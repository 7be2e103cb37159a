"""The configuration and the parameters that the page about Retriever Portfolios shows."""

import re
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import yaml

from armwise.agent.cli.preparation import prepare
from armwise.agent.config import parse
from armwise.agent.lab.routers import open_selector
from armwise.agent.lab.routers.contrastive import Contrastive
from armwise.arms.base import Query
from armwise.arms.corpus import Corpus
from armwise.arms.lab.portfolio.pool import expand, load_pool
from armwise.arms.llm import Chunk, Prompt
from armwise.arms.models import Backbone, build_embedder
from armwise.arms.retrievers import Resources, build_arm
from tests.agent.fakes import DIM
from tests.agent.trained_routers import kept
from tests.neighbours import write_corpus

ROOT = Path(__file__).parents[4]

PAGE = (ROOT / "docs/papers/retriever-portfolios.md").read_text(encoding="utf-8")

BLOCKS = {
    title: yaml.safe_load(dedent(text))
    for title, text in re.findall(
        r"^ *```yaml(?: title=\"(.*?)\")?\n(.*?)^ *```$", PAGE, re.MULTILINE | re.DOTALL
    )
}
"""The blocks of YAML, by their titles."""

CONFIG = BLOCKS["portfolio.yaml"]["applications"][0]["args"]


@pytest.fixture
def document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The configuration of the page, with a small corpus and an encoder that loads no model."""
    monkeypatch.delenv("ARMWISE_HOME", raising=False)
    text = yaml.safe_dump(CONFIG).replace("backbone: minilm", "backbone: tiny")
    document: dict[str, Any] = yaml.safe_load(
        text.replace("ranker: ranker", f"ranker: {tmp_path / 'ranker'}")
    )
    source = str(write_corpus(tmp_path / "corpus.jsonl"))
    document["corpus"] |= {"source": source}
    return document | {"home": str(tmp_path / "home"), "backbones": {"tiny": {"model": f"hashing:{DIM}"}}}


def test_the_configuration_answers_a_question(document: dict[str, Any], tmp_path: Path) -> None:
    params = document["arms"]["portfolio"]["params"]
    kept(tmp_path / "ranker", "contrastive", params["arms"], **BLOCKS["contrastive.yaml"]["params"])
    config = parse(document).resolve_places()
    assert set(config.actions) == {"words", "portfolio"}
    prepare(config, lambda *_: None)

    def write(prompt: Prompt) -> tuple[str, Chunk]:
        del prompt
        return "An answer.", Chunk(completion_tokens=3)

    have = Resources(
        Corpus.open(config.corpus_sources[0].folder),
        config.indexes_path,
        config.backbones,
        config.arms,
        write=write,
        open_selector=open_selector,
    )
    text = "Where is the moon?"
    vector = build_embedder(Backbone(model=f"hashing:{DIM}")).encode_queries([text])[0]
    found = build_arm("portfolio", have).search(Query(text, {"tiny": vector}), 4)
    (stage,) = found.stages
    assert found.answer == "An answer."
    assert (len(stage.arms), stage.failed, found.tokens) == (3, (), 9)
    assert {*stage.arms} < {*params["arms"]}


def test_the_members_are_arms_of_the_pool() -> None:
    arms, pool = CONFIG["arms"], expand(load_pool(ROOT / "examples/pool.yaml").pool)
    members = arms["portfolio"]["params"]["arms"]
    for name in members:
        spec = pool[name]
        assert arms[name] == {
            "kind": spec.kind,
            "params": {key: value for key, value in spec.params.items() if key != "index"},
            "action": False,
        }
    assert members == [name for name in re.findall(r"--arms ([\w.-]+)", PAGE) if name in members]


def test_the_router_of_the_paper_takes_its_parameters() -> None:
    params = {**BLOCKS["contrastive.yaml"]["params"], **BLOCKS[""]}
    router = Contrastive(**params)
    assert router.chosen.loss == "mean"
    assert [backbone.query_prefix for backbone in router.chosen.backbones] == ["query: "]
