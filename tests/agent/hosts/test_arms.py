"""The arms of a replica of the ingress: those that are live, with the encoders that something reads."""

import logging
from pathlib import Path
from typing import Any

import pytest

from armwise.agent.config import AppConfig, parse
from armwise.agent.hosts import arms as hosted
from armwise.arms.base import Query
from armwise.arms.deployments import Embedders, HostedArms
from armwise.arms.llm.base import ScriptedGenerator
from armwise.feedback.log import open_log
from armwise.feedback.registry import arm_sets
from tests.agent.fakes import CONFIG
from tests.neighbours import write_corpus

TWO = {"tiny": {"model": "hashing:16"}, "other": {"model": "hashing:8"}}


def configured(folder: Path, **settings: Any) -> AppConfig:
    source = str(write_corpus(folder / "corpus.jsonl"))
    args = {**CONFIG, "home": str(folder / "home"), "corpus": {"name": "small", "source": source}, **settings}
    return parse(args).resolve_places()


def opened(config: AppConfig) -> tuple[HostedArms, Embedders]:
    embedders = Embedders(config.backbones)
    return hosted.open_here(config, {}, embedders, ScriptedGenerator({})), embedders


async def test_the_arms_of_the_configuration_search_in_this_process(tmp_path: Path) -> None:
    arms, embedders = opened(configured(tmp_path, backbones={"tiny": {"model": "hashing:64"}}))
    vectors = await embedders.embed("Where is the sea?", frozenset({"tiny"}))
    for arm in ("bm25", "dense"):
        found = await arms.search(arm, Query("Where is the sea?", vectors), 1)
        assert [passage.title for passage in found.passages] == ["sea"]


@pytest.mark.parametrize(
    ("settings", "loaded", "loading"),
    [
        ({"arms": {"bm25": {"kind": "bm25"}}}, set(), set()),
        ({}, set(), {"tiny"}),
        (
            {"arms": {"bm25": {"kind": "bm25"}}, "features": {"embedding": {"backbone": "other"}}},
            {"other"},
            set(),
        ),
        (
            {"arms": {"bm25": {"kind": "bm25"}}, "features": {"similarity": {"backbone": "other"}}},
            {"other"},
            set(),
        ),
    ],
    ids=["nothing", "an arm", "the policy", "the similarity"],
)
def test_an_encoder_of_decisions_is_loaded_at_once_and_one_of_arms_later(
    tmp_path: Path, settings: dict[str, Any], loaded: set[str], loading: set[str]
) -> None:
    _, embedders = opened(configured(tmp_path, backbones=TWO, **settings))
    assert (embedders.loaded, embedders.loading) == (loaded, loading)


async def test_the_live_arms_of_the_log_are_built_instead_of_those_of_the_file(tmp_path: Path) -> None:
    near = {"kind": "dense", "params": {"backbone": "other"}, "action": False}
    config = configured(tmp_path, backbones=TWO, arms={"bm25": {"kind": "bm25"}, "near": near})
    store = open_log(config.database_url, config.reward)
    arm_sets.replace(store, ["near"], config.arm_documents)
    store.close()
    _, embedders = opened(config)
    assert embedders.loading == {"other"}


def test_a_process_of_arms_writes_a_record_of_its_log_as_one_line(tmp_path: Path) -> None:
    before = logging.getLogRecordFactory()
    logging.setLogRecordFactory(logging.LogRecord)
    try:
        hosted.live_on("Arms", configured(tmp_path))
        record = logging.getLogger("arms").makeRecord("arms", 30, "", 1, "no\nWARNING all is well", (), None)
    finally:
        logging.setLogRecordFactory(before)
    assert record.getMessage() == "no\\nWARNING all is well"


def test_a_deployment_builds_the_live_arms_that_are_placed_there(tmp_path: Path) -> None:
    arms = {
        "bm25": {"kind": "bm25"},
        "steps": {"kind": "multistep", "params": {"arm": "bm25"}},
        "far": {"kind": "bm25", "host": "Far"},
    }
    config = configured(tmp_path, arms=arms)
    assert {host: set(hosted.live_on(host, config)) for host in ("Arms", "Far")} == {
        "Arms": {"steps"},
        "Far": {"far"},
    }
    assert set(hosted.arms_on(None, config.arms, ["Arms", "Far"])) == {"bm25"}
