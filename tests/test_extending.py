"""The code of the pages on extending runs, and keeps the contracts of arms, policies and routers."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from armwise.agent.routers import ROUTERS
from armwise.arms.corpus import ingest
from armwise.arms.retrievers import ArmGraph, ArmSpec, Resources, build_arm
from tests import contracts, router_contracts

PAGES = Path(__file__).parents[1] / "docs" / "guide" / "extending"


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Return a function that runs all Python of a page as one module, its assertions included."""

    def run(name: str) -> ModuleType:
        text = (PAGES / f"{name}.md").read_text(encoding="utf-8")
        module = ModuleType(f"extending_{name}")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        source = "\n\n".join(re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
        exec(compile(source, f"{name}.md", "exec"), vars(module))
        return module

    return run


def test_the_arm_can_be_named_by_its_import_path(page: Callable[[str], Any], tmp_path: Path) -> None:
    arm = page("arm")
    spec = ArmSpec(
        kind=f"{arm.__name__}:GlossaryArm", params={"terms": {"heap": "A tree.", "heap sort": "b"}}
    )
    (tmp_path / "corpus.jsonl").write_text('{"id": "a", "text": "b"}\n')
    corpus = ingest(tmp_path / "corpus.jsonl", tmp_path / "corpus")
    built = build_arm("glossary", Resources(corpus, tmp_path, {}, {"glossary": spec}))
    found = built.search(arm.Query("What is heap sort?"), 1)
    assert [passage.id for passage in found.passages] == ["heap sort"]


def test_an_arm_is_light_only_where_its_class_says_so(page: Callable[[str], Any]) -> None:
    module = page("arm")
    specs = {"glossary": ArmSpec(kind=f"{module.__name__}:GlossaryArm")}
    assert ArmGraph(specs).is_light("glossary")
    module.GlossaryArm.light = False
    assert not ArmGraph(specs).is_light("glossary")


@pytest.mark.parametrize("check", [*contracts.CHECKS, *contracts.EXACT_CHECKS], ids=lambda one: one.__name__)
def test_the_policy_keeps_the_contract(page: Callable[[str], Any], check: Callable[[Any], None]) -> None:
    check(page("policy").MeanSoftmax)


@pytest.mark.parametrize("check", router_contracts.CHECKS, ids=lambda one: one.__name__)
def test_the_router_keeps_the_contract(
    page: Callable[[str], Any], check: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    router = page("router").MeanUtility
    monkeypatch.setattr("armwise.agent.routers.catalog.ROUTERS", {**ROUTERS, router.kind: router})
    check(router)


def test_the_estimator_is_right_on_a_log_of_known_answer(page: Callable[[str], Any]) -> None:
    estimator = page("estimator")
    assert estimator.clipped_snips(estimator.log).value == 2 / 3
