"""One bad member of a list: a mistake of the configuration stops the start, and names every one at once.

What fails outside of the file takes out only what needs it. Sources are in `test_sources_away`.
"""

from pathlib import Path
from typing import Any

import pytest

from armwise.agent.cli.preparation import prepare
from armwise.agent.config import ConfigError, parse
from armwise.agent.hosts.single_process import open_backends
from armwise.arms.base import ArmError, Query
from tests.agent.fakes import CONFIG
from tests.arms.proxy_variables import forget_proxies
from tests.neighbours import write_corpus

WORDS = {"kind": "bm25"}

ENDPOINT = {"engine": "openai", "base_url": "http://127.0.0.1:9/v1", "model": "m"}

SOURCE = {"kind": "outcomes", "path": "/nowhere", "metrics": {"f1": "right"}}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (
            {"arms": {"words": WORDS, "a": {"kind": "bm52"}, "b": {**WORDS, "params": {"k9": 1}}}},
            ["arm 'a': unknown kind 'bm52'", "arm 'b' of kind 'bm25': unknown parameter 'k9'"],
        ),
        (
            {
                "arms": {
                    "words": WORDS,
                    "a": {"kind": "dense", "params": {"backbone": "x"}},
                    "b": {"kind": "no:C"},
                }
            },
            ["arm 'a': unknown backbone 'x'", "arm 'b': cannot import 'no:C'"],
        ),
        (
            {"arms": {"words": WORDS, "a": {"kind": "rrf", "params": {"arms": ["words", "x"]}}}},
            ["arm 'a': unknown arm 'x'"],
        ),
        ({"corpora": {"docs": {"source": "d"}, "more": {"sauce": "d"}}}, ["corpora.more.sauce"]),
        ({"backbones": {"tiny": {"model": "hashing:8"}, "a": {}}}, ["backbones.a.model"]),
        ({"llms": {"a": ENDPOINT, "b": {**ENDPOINT, "engine": "opnai"}}}, ["llms.b"]),
        ({"keys": [{"name": "a"}]}, ["keys.0"]),
        ({"aliases": {"a": "arm/bm25", "b": "arm/bm52"}}, ["aliases.b"]),
        (
            {"reward": {"metrics": {"a": {"range": [1, 0]}, "b": {"type": "bool"}, "c": {"range": [0, 1]}}}},
            ["reward.metrics.a", "reward.metrics.b.type"],
        ),
        (
            {"warm_start": {"cron": "61 * * * *", "sources": {"a": {"kind": "x"}}}},
            ["warm_start.cron", "sources.a"],
        ),
        ({"prompts": {"a": {"with_passages": "", "without_passages": ""}}}, ["prompts.a.without_passages"]),
        ({"pipelines": [{"retrieval": ["x"], "llm": ["default"]}]}, ["pipelines: unknown arm 'x'"]),
        ({"steps": [{"kind": "no.module:Step"}, {}]}, ["steps.1"]),
        ({"privacy": {"redact": [{"name": "a", "pattern": "("}]}}, ["privacy.redact.0"]),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_mistakes_of_the_configuration_are_named_at_once(settings: dict[str, Any], named: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        parse({**CONFIG, **settings})
    assert [part for part in named if part not in str(refused.value)] == [], str(refused.value)


ENGINE = {"url": "http://127.0.0.1:9", "collection": "c"}


@pytest.mark.parametrize(
    "arm",
    [
        {"kind": "opensearch", "params": ENGINE},
        {"kind": "postgres", "params": {**ENGINE, "url": "postgresql://u@127.0.0.1:9/d"}},
        {"kind": "mcp", "params": {"url": "http://127.0.0.1:9/mcp", "tool": "find"}},
    ],
    ids=lambda arm: str(arm["kind"]),
)
async def test_an_arm_whose_host_is_away_fails_alone(tmp_path: Path, arm: dict[str, Any]) -> None:
    source = str(write_corpus(tmp_path / "corpus.jsonl"))
    document = {
        **CONFIG,
        "home": str(tmp_path / "home"),
        "corpus": {"name": "small", "source": source},
        "arms": {"words": WORDS, "far": arm},
        "limits": {},
    }
    config = parse(document).resolve_places()
    prepare(config, lambda *_: None)
    arms = open_backends(config).arms
    assert (await arms.search("words", Query("Where is the sea?"), 1)).passages
    with pytest.raises(ArmError):
        await arms.search("far", Query("Where is the sea?"), 1)


async def test_an_arm_whose_proxy_cannot_be_used_stops_no_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_proxies(monkeypatch)
    monkeypatch.setenv("HTTP_PROXY", "http://[")
    far = {
        "kind": "remote",
        "params": {"url": "http://service.example", "request": {"q": "{question}"}},
    }
    document = {**CONFIG, "home": str(tmp_path / "home"), "arms": {"words": WORDS, "far": far}, "limits": {}}
    source = str(write_corpus(tmp_path / "corpus.jsonl"))
    config = parse({**document, "corpus": {"name": "small", "source": source}}).resolve_places()
    prepare(config, lambda *_: None)
    arms = open_backends(config).arms
    assert (await arms.search("words", Query("Where is the sea?"), 1)).passages
    with pytest.raises(ArmError, match="HTTP_PROXY="):
        await arms.search("far", Query("Where is the sea?"), 1)


async def test_a_model_whose_endpoint_is_away_stops_no_start(tmp_path: Path) -> None:
    source = str(write_corpus(tmp_path / "corpus.jsonl"))
    arms = {"words": WORDS, "large": {**WORDS, "answering": {"llm": "far"}}}
    document = {**CONFIG, "home": str(tmp_path / "home"), "corpus": {"name": "small", "source": source}}
    config = parse({**document, "arms": arms, "llms": {"far": ENDPOINT}, "limits": {}}).resolve_places()
    prepare(config, lambda *_: None)
    assert open_backends(config).generators.keys() == {"default", "far"}
