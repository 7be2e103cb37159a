"""A trained router in a folder, in the configuration, and in a replica."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from armwise.agent.cli.preparation import prepare
from armwise.agent.config import ConfigError, load, parse
from armwise.agent.routers import out_of_fold
from armwise.agent.routers.catalog import RouterSpec, build_router
from armwise.agent.routers.dataset import RouterError
from armwise.agent.routers.saved import (
    ABOUT,
    MODEL,
    RouterConfig,
    Trained,
    digest_router,
    find_passage_backbone,
    read_about,
    read_trained,
    warn_of_corpus,
    write_trained,
)
from armwise.arms import manifest
from armwise.arms.corpus import Corpus
from armwise.arms.indexes import PassageVectors
from armwise.arms.models import ModelNotFoundError
from tests.agent.asking import ask, look_up
from tests.agent.fakes import CONFIG, Service
from tests.agent.trained_routers import kept, trained
from tests.neighbours import write_corpus
from tests.router_contracts import world

QUESTION_ROUTER: dict[str, Any] = {"kind": "ridge", "sees": "features"}


def configured(path: Path, **changes: Any) -> dict[str, Any]:
    return {**CONFIG, "router": {"path": str(path)}, **changes}


def complaint(document: object) -> str:
    with pytest.raises(ConfigError) as raised:
        parse(document)
    return str(raised.value)


# -- the folder --------------------------------------------------------------------------------------


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    wrote = trained(build_router(RouterSpec(kind="pointwise_xgboost", params={"rounds": 2})))
    write_trained(tmp_path / "router", wrote)
    read = read_trained(tmp_path / "router")
    assert read.about == wrote.about
    assert read.router.save() == wrote.router.save()
    assert {path.name for path in (tmp_path / "router").iterdir()} == {MODEL, ABOUT, "manifest.json"}


def test_a_router_replaces_the_one_before(tmp_path: Path) -> None:
    kept(tmp_path, "max_sim")
    kept(tmp_path, "moran")
    assert read_trained(tmp_path).router.kind == "moran"


def test_a_router_in_use_is_not_loaded_again(tmp_path: Path) -> None:
    kept(tmp_path)
    first = read_trained(tmp_path).router
    assert read_trained(tmp_path).router is first


def test_a_question_of_which_one_score_is_unknown_has_none(tmp_path: Path) -> None:
    about = read_about(kept(tmp_path))
    scores = np.arange(3.0 * len(about.arms)).reshape(3, -1)
    scores[1, 0] = np.nan
    out_of_fold.write_out_of_fold(tmp_path, about, ["Where?", "Who?", "When?"], scores)
    trained_on, found = out_of_fold.read_out_of_fold(tmp_path, about).look_up(
        ["Who?", "When?", "Why?"], len(about.arms)
    )
    assert trained_on.tolist() == [True, True, False]
    assert np.isnan(found).tolist() == [[row != 1] * len(about.arms) for row in range(3)]
    np.testing.assert_array_equal(found[1], scores[2])


def test_scores_of_another_router_are_refused_with_their_file(tmp_path: Path) -> None:
    about = read_about(kept(tmp_path))
    out_of_fold.write_out_of_fold(
        tmp_path, about.model_copy(update={"digest": "0" * 32}), ["Where?"], np.zeros((1, len(about.arms)))
    )
    with pytest.raises(RouterError, match=r"/unseen\.jsonl is of router '0+', not of '"):
        out_of_fold.read_out_of_fold(tmp_path, about)


def test_a_folder_without_a_router_says_what_writes_one(tmp_path: Path) -> None:
    with pytest.raises(RouterError, match=r"holds no trained router: .*router\.json.*; `armwise lab train`"):
        read_trained(tmp_path)
    kept(tmp_path)
    (tmp_path / MODEL).unlink()
    with pytest.raises(RouterError, match=r"holds no trained router: .*router\.model"):
        read_trained(tmp_path)


def damaged(folder: Path, **changes: object) -> Path:
    """Change what is told of a router."""
    told = json.loads((folder / ABOUT).read_text())
    (folder / ABOUT).write_text(json.dumps({**told, **changes}))
    manifest.write(folder)
    return folder


def test_a_folder_that_is_damaged_or_of_another_version_is_refused(tmp_path: Path) -> None:
    kept(tmp_path)
    saved = (tmp_path / MODEL).read_bytes()
    (tmp_path / MODEL).write_bytes(saved[:-1])
    with pytest.raises(RouterError, match=r"router\.model is damaged: .* again \(`armwise lab train`\)"):
        read_trained(tmp_path)
    (tmp_path / manifest.MANIFEST).unlink()  # as of a version that wrote none
    with pytest.raises(RouterError, match=r"router\.model is damaged: its digest is .* train it again"):
        read_trained(tmp_path)
    kept(tmp_path)
    with pytest.raises(RouterError, match=r"router\.json is damaged, or of another version: format: "):
        read_trained(damaged(tmp_path, format=2))
    (tmp_path / ABOUT).write_text("{")
    manifest.write(tmp_path)
    with pytest.raises(RouterError, match=r"router\.json is damaged, or of another version: Invalid JSON"):
        read_trained(tmp_path)


def test_a_router_of_another_version_is_refused_though_its_digest_fits(tmp_path: Path) -> None:
    wrote = trained(build_router(RouterSpec(kind="max_sim")))
    write_trained(tmp_path, wrote)
    other = wrote.router.save().replace(b'"format": 1', b'"format": 9')
    (tmp_path / MODEL).write_bytes(other)
    damaged(tmp_path, digest=digest_router(other))
    with pytest.raises(RouterError, match="format is 9, not 1"):
        read_trained(tmp_path)


def test_a_router_whose_own_encoder_is_gone_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept(tmp_path, "contrastive", encoder="hashing:8")
    assert read_trained(tmp_path).router.kind == "contrastive"

    def gone(_backbone: object) -> None:
        raise ModelNotFoundError("model 'hashing:8': gone")

    monkeypatch.setattr("armwise.agent.lab.routers.contrastive.build_embedder", gone)
    with pytest.raises(RouterError, match=r"router\.model: model 'hashing:8': gone"):
        read_trained(tmp_path)


# -- the configuration -------------------------------------------------------------------------------


def test_a_router_that_fits_is_taken_with_its_path_made_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept(tmp_path / "router")
    monkeypatch.chdir(tmp_path)
    config = parse(configured(Path("router")))
    assert config.router is not None
    settled = config.resolve_places().router
    assert settled is not None
    assert settled.path == tmp_path / "router"
    assert config.with_arms(["none"]).router == config.router


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"backbones": {"teeny": {"model": "hashing:16"}}, "arms": {"none": {"kind": "none"}}},
         "router: it was trained on backbone 'tiny', which is not declared; did you mean 'teeny'?"),
        ({"backbones": {"tiny": {"model": "hashing:32"}}},
         "router: it was trained on another backbone 'tiny': its model is 'hashing-32-3' here and was "
         "'hashing-16-3'"),
        ({"backbones": {"tiny": {"model": "hashing:16", "query_prefix": "query: "}}},
         "its prefix is 'query: ' here and was ''"),
        ({"backbones": {"tiny": {"model": "./nowhere"}}}, "nowhere': there is no file or folder"),
        ({"arms": {"words": {"kind": "bm25"}}}, "router: it knows none, bm25, dense, and none of words"),
    ],
)  # fmt: skip
def test_a_router_that_does_not_fit_is_refused_when_the_configuration_is_read(
    tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    assert told in complaint(configured(kept(tmp_path), **changes))


def test_a_router_that_reads_how_well_a_question_fits_needs_that_feature(tmp_path: Path) -> None:
    document = configured(kept(tmp_path, "calibrated", router={"kind": "source_fit"}))
    assert "router: router 'calibrated' reads how well a question fits" in (told := complaint(document))
    assert "add `features: {similarity: {}}`" in told
    assert parse({**document, "features": {"similarity": {}}}).router is not None


def test_a_configuration_refuses_a_missing_or_damaged_router(tmp_path: Path) -> None:
    assert f"router: {tmp_path / 'none'} holds no trained router" in complaint(configured(tmp_path / "none"))
    kept(tmp_path)
    (tmp_path / MODEL).write_bytes(b"")
    assert "router: " in (told := complaint(configured(tmp_path)))
    assert "is damaged" in told


def test_a_router_that_compares_answers_does_not_choose_arms() -> None:
    labels = world(60, seed=0)
    router = build_router(
        RouterSpec(kind="pointwise_xgboost", params={"stage": "answered", "rounds": 2})
    ).fit(labels)
    about = trained(build_router(RouterSpec(kind="max_sim"))).about
    with pytest.raises(RouterError, match="compares answers, which no arm has given before one is drawn"):
        Trained(router, about).check(parse(CONFIG).backbones, ["bm25"], has_fit=True)


def test_a_configuration_can_be_read_without_its_router(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"applications": [{"args": configured(tmp_path / "none")}]}))
    with pytest.raises(ConfigError, match="holds no trained router"):
        load(path)
    assert load(path, without=["router"]).router is None


@pytest.mark.parametrize(("written", "expected"), [("~/router", "user/router"), ("router", "router")])
def test_the_path_of_a_router_is_that_of_the_user_or_below_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str, expected: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.chdir(tmp_path)
    assert RouterConfig(path=Path(written)).path == tmp_path / expected


def test_the_vectors_that_a_router_looks_at_are_made_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ARMWISE_HOME", raising=False)
    source = {"name": "small", "source": str(write_corpus(tmp_path / "corpus.jsonl"))}
    home = {"home": str(tmp_path / "home"), "corpus": source, "arms": {"none": {"kind": "none"}}}
    config = parse(configured(kept(tmp_path / "router"), **home))
    prepare(config, lambda *_: None)
    vectors = PassageVectors(
        Corpus.open(config.corpus_sources[0].folder), config.indexes_path, config.backbones["tiny"]
    )
    assert vectors.look_up(["p3", "of no corpus"]).keys() == {"p3"}


def test_a_router_of_another_corpus_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    about = trained(build_router(RouterSpec(kind="max_sim"))).about.model_copy(update={"corpus": "abc"})
    warn_of_corpus(about, "abc")
    warn_of_corpus(about.model_copy(update={"corpus": None}), "def")  # it looks at no passage
    assert caplog.text == ""
    warn_of_corpus(about, "def")
    assert "trained on what arms found in corpus abc, and this one is def" in caplog.text


def test_vectors_are_asked_for_where_a_router_looks_at_passages(tmp_path: Path) -> None:
    assert find_passage_backbone(None) == frozenset()
    assert find_passage_backbone(parse(configured(kept(tmp_path / "a"))).router) == {"tiny"}
    asked = kept(tmp_path / "b", **QUESTION_ROUTER)
    assert find_passage_backbone(parse(configured(asked)).router) == frozenset()


# -- a replica ---------------------------------------------------------------------------------------


async def until_it_decides(service: Service) -> None:
    """Wait until the router is loaded, in a thread."""
    async with asyncio.timeout(30):
        while not service.replica.decides:
            await asyncio.sleep(0.001)


async def test_a_service_follows_a_router_of_the_question(tmp_path: Path) -> None:
    folder = kept(tmp_path / "router", **QUESTION_ROUTER)
    routed = {"kind": "routed", "params": {"epsilon": 0.0}}
    async with Service(tmp_path, router={"path": str(folder)}, policy=routed).running() as service:
        await until_it_decides(service)
        when = [{"role": "user", "content": "when 3?"}]
        ours = (await ask(service, messages=when)).json()["agent"]
        assert ours["pmf"]["bm25"] == pytest.approx(1 - 2 * 0.02 / 3), (
            "which is best where a question begins with when"
        )
        told = (await service.client.get(f"/v1/decisions/{ours['decision_id']}")).json()
        scores = {arm: features["router"] for arm, features in told["arm_features"].items()}
        assert max(scores, key=lambda arm: scores[arm]) == "bm25"
        assert len(service.arms.calls) == 1
        policy = (await service.client.get("/v1/policy")).json()
        about = read_trained(folder).about
        assert policy["router"] == {
            "kind": "ridge",
            "params": about.params,
            "stage": "question",
            "digest": about.digest,
            "arms": ["none", "bm25", "dense"],
        }


async def test_a_service_follows_a_router_of_what_was_retrieved(tmp_path: Path) -> None:
    folder = kept(tmp_path / "router", "max_sim")
    async with Service(tmp_path, router={"path": str(folder)}).running() as service:
        await until_it_decides(service)
        ours = (await look_up(service, k=1)).json()["agent"]
        assert sorted(service.arms.asked) == ["bm25", "dense", "none"]
        assert {k for _, _, k in service.arms.calls} == {2}
        warm_up, (backbone, ids) = service.arms.looked_at
        assert warm_up == ("tiny", ("no passage",)), "the vectors are opened before the first question"
        assert (backbone, len(ids)) == ("tiny", 6), "the first two of each arm"
        assert ours["cost"]["steps"] == 2
        told = (await service.client.get(f"/v1/decisions/{ours['decision_id']}")).json()
        assert all(np.isfinite(features["router"]) for features in told["arm_features"].values())
        assert len(told["passage_ids"]) == 1


async def test_an_arm_that_the_router_was_not_trained_on_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = kept(tmp_path / "router")
    arms = {**CONFIG["arms"], "words": {"kind": "bm25", "params": {"k1": 0.9}}}
    with caplog.at_level(logging.WARNING, "armwise.agent.routers.saved"):
        async with Service(tmp_path, router={"path": str(folder)}, arms=arms).running() as service:
            ours = (await look_up(service)).json()["agent"]
            told = (await service.client.get(f"/v1/decisions/{ours['decision_id']}")).json()
    assert "router" not in told["arm_features"]["words"]
    assert {record.getMessage() for record in caplog.records} == {
        "the router was not trained on words: it gives them no score"
    }


async def test_arms_of_which_the_router_knows_none_cannot_be_made_the_live_ones(tmp_path: Path) -> None:
    folder = kept(tmp_path / "router")
    arms = {**CONFIG["arms"], "words": {"kind": "bm25", "action": False}}
    async with Service(tmp_path, router={"path": str(folder)}, arms=arms).running() as service:
        response = await service.client.put("/v1/arms", json={"arms": ["words"]})
        assert response.status_code == 400
        assert "none of words" in response.json()["error"]["message"]


async def test_without_a_router_none_is_told_of(service: Service) -> None:
    assert (await service.client.get("/v1/policy")).json()["router"] is None
