"""A router that looks at passages scores earlier decisions as it would have before the draw."""

from pathlib import Path

import numpy as np
import pytest

from armwise.agent.config import AppConfig, parse
from armwise.agent.hosts.arms import open_here
from armwise.agent.learning import keep_router, score_by_searching
from armwise.agent.policies import Exploration
from armwise.agent.policies.router import Routed
from armwise.agent.routers import out_of_fold, read_trained
from armwise.agent.serving.arms import arm_infos
from armwise.agent.serving.router_scores import Scorers
from armwise.agent.turn import Ask, Decided, Serving
from armwise.arms.deployments import Embedders
from armwise.arms.llm import base
from armwise.feedback.events import Decision
from armwise.feedback.log import GroupCommit, Store
from armwise.feedback.training_log import router_contexts
from tests.agent.fakes import CONFIG
from tests.agent.trained_routers import TEXTS, kept
from tests.agent.turns import make_decider, make_turns
from tests.neighbours import SUBJECTS, write_corpus

QUESTIONS = [f"who saw the {subject}?" for subject in SUBJECTS[:6]]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AppConfig:
    """A corpus of twelve passages, three arms, and a router that looks at what they find."""
    monkeypatch.delenv("ARMWISE_HOME", raising=False)
    folder = kept(tmp_path / "router", "max_sim")
    out_of_fold.write_out_of_fold(folder, read_trained(folder).about, TEXTS, np.full((len(TEXTS), 3), 0.25))
    source = {"name": "small", "source": str(write_corpus(tmp_path / "corpus.jsonl"))}
    document = {**CONFIG, "home": str(tmp_path / "home"), "corpus": source, "router": {"path": str(folder)}}
    return parse({**document, "log_url": f"sqlite:///{tmp_path / 'log.db'}"}).resolve_places()


async def decided(config: AppConfig, store: Store, questions: list[str]) -> list[Decision]:
    """Ask a replica that serves the configured router, with real arms."""
    embedders, log = Embedders(config.backbones), GroupCommit(store)
    arms = open_here(config, {}, embedders, base.ScriptedGenerator({}, default=""))
    serving = Serving(
        Routed(epsilon=0.5), 1, scorer=Scorers(store, config, arms.vectors, embedders.embed).configured
    )
    salt = store.draw_secret.salt
    decider = make_decider(serving, Exploration(0.1, 0.1), salt)
    loop = make_turns(arm_infos(config), decider, embedders.embed, arms.search, log, features=config.features)
    found = []
    for number, question in enumerate(questions):
        events = [event async for event in loop.turn(Ask(f"d-{number}", question))]
        found += [event.decision for event in events if isinstance(event, Decided)]
    log.close()
    return found


def quietly(*_: object) -> None:
    """Hear of progress, and say nothing."""


async def test_the_scores_are_those_that_a_replica_logs(
    config: AppConfig, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("armwise.agent.learning.router_scores.SEARCH_BATCH", 4)
    assert config.router is not None
    made = await decided(config, store, QUESTIONS)
    digest = keep_router(store, config.router.path, 0.0)
    said = score_by_searching(store, digest, config, quietly)
    assert said == "6 earlier decisions were searched again for the router"
    contexts = router_contexts.read_contexts(store, made, digest)
    assert contexts == [one.context for one in made]
    assert len({one.arms["bm25"]["router"] for one in contexts}) > 1
    assert score_by_searching(store, digest, config, quietly) == "", "once"


async def test_only_the_newest_are_searched_and_questions_of_its_training_get_what_was_unseen(
    config: AppConfig, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert config.router is not None
    made = await decided(config, store, [*QUESTIONS[:2], TEXTS[0]])
    digest = keep_router(store, config.router.path, 0.0)
    monkeypatch.setattr("armwise.agent.learning.router_scores.SEARCHED", 2)
    assert score_by_searching(store, digest, config, quietly).startswith("2 earlier decisions")
    first, _, last = router_contexts.read_contexts(store, made, digest)
    assert not any("router" in features for features in first.arms.values())
    assert {features["router"] for features in last.arms.values()} == {0.25}


async def test_arms_that_are_not_light_are_not_asked_again(config: AppConfig, store: Store) -> None:
    assert config.router is not None
    await decided(config, store, QUESTIONS[:1])
    digest = keep_router(store, config.router.path, 0.0)
    writing = {"dense": {"kind": "multistep", "params": {"arm": "bm25"}}, "bm25": {"kind": "bm25"}}
    config = parse({**config.model_dump(mode="json"), "arms": writing})
    said = score_by_searching(store, digest, config, quietly)
    assert said == (
        "earlier decisions are not searched again, which would ask dense: the router has no scores of them"
    )
    assert len(router_contexts.list_unscored(store, digest, newest=10)) == 1


async def test_passages_of_some_groups_are_not_searched_again(config: AppConfig, store: Store) -> None:
    assert config.router is not None
    await decided(config, store, QUESTIONS[:1])
    digest = keep_router(store, config.router.path, 0.0)
    source = Path(config.corpus.source)
    restricted = source.read_text().replace('"id"', '"metadata": {"allowed_groups": ["crew"]}, "id"', 1)
    source.write_text(restricted)
    said = score_by_searching(store, digest, config, quietly)
    assert said.startswith("earlier decisions are not searched again: which passages they could find")
    assert len(router_contexts.list_unscored(store, digest, newest=10)) == 1
