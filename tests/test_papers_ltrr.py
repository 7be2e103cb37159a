"""The page of LTRR: its configuration is served, and its router sees the features of the paper alone."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import yaml

from armwise.agent.config import load
from armwise.agent.routers import RouterSpec, build_router, features
from armwise.agent.routers.dataset import ArmTable
from tests.pages import blocks_of
from tests.router_contracts import world

PAGE = "docs/papers/ltrr.md"


def save(folder: Path) -> dict[str, Path]:
    """Save the files of the page, as its reader does."""
    files = {block.title: block.text for block in blocks_of(PAGE) if block.title.endswith(".yaml")}
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return {name: folder / name for name in files}


def test_the_service_of_the_page_has_the_actions_of_ltrr(tmp_path: Path) -> None:
    settings = load(save(tmp_path)["ltrr.yaml"], without=["router"])  # it is about to be trained
    kinds = [spec.kind for spec in settings.arms.values()]
    assert kinds == [
        "none",
        *("bm25", "regularize", "plackett_luce"),
        *("dense", "regularize", "plackett_luce"),
    ]
    assert [settings.arms[name].params.get("arm") for name in settings.arms] == [
        *(None, None, "bm25", "bm25", None, "dense", "dense")
    ]
    assert {settings.find_answering(arm).prompt for arm in settings.actions} == {"reasoning"}


def test_the_router_of_the_page_sees_its_features_alone(tmp_path: Path) -> None:
    spec = RouterSpec.model_validate(yaml.safe_load(save(tmp_path)["router.yaml"].read_text()))
    labels = world(40, seed=1)
    shown, rng = labels.features, np.random.default_rng(0)
    retrieved = rng.uniform(size=(40, 4, len(features.RETRIEVED)))
    shown = replace(
        shown,
        names=features.QUESTION,
        question=features.build_question_table(shown.texts),
        retrieved=ArmTable(features.RETRIEVED, retrieved),
    )
    router = build_router(spec).fit(replace(labels, features=shown))
    assert router.schema is not None
    assert router.schema.names == ("shape=keyword", "length")
    scaled = ("overall_sim", "avg_sim", "max_sim", "var_sim", "moran", "cross_sim")
    assert set(router.schema.retrieved) == {f"{name}.scaled" for name in scaled}
    assert (router.params["dims"], router.params["identity"], router.params["impute"]) == (32, False, True)
