"""The code of the pages on extending runs, and keeps the contracts of arms, policies and routers."""

import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from armwise.agent.config import StepSpec
from armwise.agent.routers import ROUTERS
from armwise.arms.corpus import ingest
from armwise.arms.retrievers import ArmGraph, ArmSpec, ArmSpecError, Resources, build_arm
from tests import contracts, router_contracts
from tests.agent.asking import look_up
from tests.agent.fakes import Service

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


def test_the_settings_of_an_arm_are_checked(page: Callable[[str], Any]) -> None:
    kind = f"{page('arm').__name__}:GlossaryArm"
    specs = {
        "empty": ArmSpec(kind=kind, params={"terms": {}}),
        "odd": ArmSpec(kind=kind, params={"term": {}}),
    }
    with pytest.raises(ArmSpecError, match="terms: Dictionary should have at least 1 item") as refusal:
        ArmGraph(specs).validate([])
    assert "unknown parameter 'term'; did you mean 'terms'" in str(refusal.value)


def test_an_arm_is_light_only_where_its_class_says_so(page: Callable[[str], Any]) -> None:
    module = page("arm")
    specs = {
        "glossary": ArmSpec(kind=f"{module.__name__}:GlossaryArm", params={"terms": {"heap": "A tree."}})
    }
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


HOURS = [(21, True), (22, False), (23, False), (5, False), (6, True), (12, True)]


@pytest.mark.parametrize(("hour", "is_drawn"), HOURS)
async def test_the_step_leaves_an_arm_out_at_night(
    page: Callable[[str], Any], tmp_path: Path, hour: int, is_drawn: bool
) -> None:
    module = page("step")
    module.datetime = type(
        "Clock", (), {"now": staticmethod(lambda _: datetime(2026, 1, 1, hour, tzinfo=UTC))}
    )
    steps = [{"kind": f"{module.__name__}:NotAtNight", "params": {"arm": "bm25"}}]
    async with Service(tmp_path, steps=steps).running() as service:
        decision_id = (await look_up(service)).json()["agent"]["decision_id"]
        record = (await service.client.get(f"/v1/decisions/{decision_id}")).json()
        assert ("bm25" in record["pmf"]) is is_drawn
        assert record["masked"] == ({} if is_drawn else {"bm25": "night"})
        named = await look_up(service, model="arm/bm25")
        assert named.is_success is is_drawn
        assert is_drawn or "'bm25' is left out (night)" in named.text
        assert (await service.client.get(f"/v1/decisions/{decision_id}/verify")).json()["verified"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"kind": "no_such_module:Step"}, "cannot be imported"),
        ({"kind": "pathlib:Path"}, "is not a subclass of TurnStep"),
        ({"kind": "armwise.agent.turn.steps.floor:FloorStep"}, "needs the attribute `name`"),
        ({"kind": "{page}:NotAtNight"}, "cannot be built: .*arm"),
        ({"kind": "{page}:NotAtNight", "params": {"arm": "bm25", "start": 24}}, "must be from 0 to 23"),
    ],
)
def test_a_step_that_cannot_be_built_is_refused(
    page: Callable[[str], Any], spec: dict[str, Any], message: str
) -> None:
    named = {**spec, "kind": spec["kind"].format(page=page("step").__name__)}
    with pytest.raises(ValueError, match=message):
        StepSpec.model_validate(named).build()
