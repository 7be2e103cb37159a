"""Cascades: arms answer in stages until a decider stops, and only what ran is charged."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from armwise.arms.base import Arm, ArmBuildError, ArmError, Passage, Query, Retrieval, StageRun
from armwise.arms.corpus import Corpus
from armwise.arms.llm import GeneratorError, Prompt, prompts
from armwise.arms.models import Backbone
from armwise.arms.more.generative.cascade import CascadeArm
from armwise.arms.retrievers import ArmGraph, NoRetrieval, build_arm, prepare
from armwise.arms.retrievers.catalog import ArmSpecError
from armwise.arms.retrievers.kind import ArmSpec, CascadeStep, DeciderSpec, Resources
from tests.arms.contract import DIM, check_arm
from tests.arms.more.generative.test_ensemble import WHICH, Fails, Model, Says

SHORT = prompts.Writing(prompts.Form.SHORT, 400, 32)


class Longest:
    """Picks the longest answer, and goes on while it is shorter than wanted; keeps what it was shown."""

    def __init__(self, wanted: int, stages: int, k: int = 2) -> None:
        self.k = k
        self.shown: list[tuple[list[str | None], list[list[str]]]] = []
        self._wanted, self._stages = wanted, stages

    def decide(
        self, question: str, answers: Sequence[str | None], found: Sequence[Sequence[Passage]]
    ) -> CascadeStep:
        del question
        self.shown.append(([*answers], [[passage.id for passage in passages] for passages in found]))
        best = max(range(len(answers)), key=lambda at: -1 if answers[at] is None else len(answers[at] or ""))
        length = len(answers[best] or "")
        return CascadeStep(best, length / 10, None, len(self.shown) < self._stages and length < self._wanted)


def of(decider: Longest, *stages: Sequence[Arm], write: Any = None) -> CascadeArm:
    return CascadeArm("all", stages, decider, SHORT, write or Model())


def test_a_cascade_stops_after_the_first_good_stage() -> None:
    decider, model = Longest(5, 3), Model()
    never = Fails("never")
    found = of(decider, [Says("Rome", tokens=5)], [Says("Paris", steps=2)], [never], write=model).search(
        WHICH, 4
    )
    assert [passage.id for passage in found.passages] == ["Paris"]
    assert decider.shown == [(["Rome"], [["Rome"]]), (["Rome", "Paris"], [["Rome"], ["Paris"]])]
    assert (found.steps, found.tokens) == (3, 5 + model.tokens), "of the two stages that ran"
    assert [(run.arms, run.steps, run.picked, run.probability) for run in found.stages] == [
        (("Rome",), 1, "Rome", 0.4),
        (("Paris",), 2, "Paris", 0.5),
    ]
    assert sum(run.tokens for run in found.stages) == found.tokens


class Lists(Says):
    """Finds as many passages as it is asked for."""

    @override
    def search(self, query: Query, k: int) -> Retrieval:
        del query
        return Retrieval(tuple(Passage(f"{self.name} {at}", "", "Rome", 0.5) for at in range(k)))


def test_k_passages_are_returned_though_fewer_are_read() -> None:
    decider = Longest(1, 2, k=2)
    found = of(decider, [Lists("Rome")], [Fails("never")]).search(WHICH, 4)
    assert [passage.id for passage in found.passages] == ["Rome 0", "Rome 1", "Rome 2", "Rome 3"]
    assert decider.shown[0][1] == [["Rome 0", "Rome 1"]]


def test_the_best_answer_may_be_one_of_an_earlier_stage() -> None:
    found = of(Longest(9, 2), [NoRetrieval("none"), Says("Ljubljana")], [Says("Rome")]).search(WHICH, 4)
    assert [passage.id for passage in found.passages] == ["Ljubljana"]
    found = of(Longest(9, 2), [NoRetrieval("none"), Says("Oslo")], [Says("Rome")]).search(WHICH, 4)
    assert found.passages == (), "London, from no passage, is the longest of the three"
    assert [run.picked for run in found.stages] == ["none", "none"]


def test_a_member_that_fails_is_left_out_and_recorded() -> None:
    decider = Longest(9, 2)
    found = of(decider, [Fails("broken"), Says("Rome")], [Says("Paris")]).search(WHICH, 4)
    assert decider.shown[0] == ([None, "Rome"], [[], ["Rome"]])
    assert found.steps == 2
    assert [run.failed for run in found.stages] == [("broken",), ()]


def test_where_a_whole_stage_fails_the_next_one_runs() -> None:
    decider = Longest(1, 2)
    found = of(decider, [Fails("one"), Fails("two")], [Says("Rome")]).search(WHICH, 4)
    assert found.stages[0] == StageRun(("one", "two"), ("one", "two"), 0, 0)
    assert len(decider.shown) == 1, "it is not asked where there is nothing to decide"
    with pytest.raises(ArmError, match="every member of arm 'all' failed: one: one is broken; two: two is"):
        of(Longest(1, 2), [Fails("one")], [Fails("two")]).search(WHICH, 4)


def test_an_answer_that_fails_is_a_failed_member() -> None:
    def write(prompt: Prompt) -> Any:
        if "Oslo" in prompt.messages[0]["content"]:
            raise GeneratorError("the model is away")
        return Model()(prompt)

    found = of(Longest(1, 2), [Says("Oslo"), Says("Rome")], [Says("Paris")], write=write).search(WHICH, 4)
    assert [passage.id for passage in found.passages] == ["Rome"]
    assert found.stages[0].failed == ("Oslo",)


class Always(Longest):
    """Stops after the first stage."""

    def __init__(self) -> None:
        super().__init__(0, 1)

    def decide(
        self, question: str, answers: Sequence[str | None], found: Sequence[Sequence[Passage]]
    ) -> CascadeStep:
        del question, found
        return CascadeStep(len(answers) - 1, 1.0, -0.1, False)


PARAMS = {"stages": [["none", "words"], ["near"]], "decider": "/deciders/cities", "max_tokens": 9}
SPECS = {
    "none": ArmSpec(kind="none"),
    "words": ArmSpec(kind="bm25"),
    "near": ArmSpec(kind="dense", params={"backbone": "hashed"}),
    "all": ArmSpec(kind="cascade", params=PARAMS),
}


WORDS_ONLY = {"all": ArmSpec(kind="cascade", params={**PARAMS, "stages": [["none"], ["words"]]})}


def test_a_cascade_keeps_the_contract_of_arms(corpus: Corpus, tmp_path: Path) -> None:
    asked: list[DeciderSpec] = []

    def open_fake(wanted: Any, /) -> Any:
        asked.append(wanted)
        return Always()

    backbones = {"hashed": Backbone(model=f"hashing:{DIM}")}
    have = Resources(corpus, tmp_path, backbones, SPECS, write=Model(), open_selector=open_fake)
    prepare(have)
    arm = build_arm("all", have)
    assert arm.backbones == ArmGraph(SPECS).backbones("all") == {"hashed"}, "of every stage"
    wanted = DeciderSpec(
        Path("/deciders/cities"),
        (("none", "words"), ("near",)),
        prompts.Writing(prompts.Form.SHORT, 400, 9),
    )
    assert asked == [wanted, wanted]
    check_arm(arm, corpus)
    assert arm.search(WHICH, 4).steps == 1, "the arm that needs an embedding was not asked"


def test_without_deciders_a_cascade_is_not_prepared(corpus: Corpus, tmp_path: Path) -> None:
    have = Resources(corpus, tmp_path, {}, {name: SPECS[name] for name in ("none", "words")} | WORDS_ONLY)
    with pytest.raises(
        ArmBuildError, match="decider /deciders/cities: deciders of cascades are not available"
    ):
        prepare(have)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"stages": [["none"]]}, "stages: .*at least 2 items"),
        ({"stages": [["none"], []]}, "stages.1: .*at least 1 item"),
        ({"stages": [["none"], ["wrds"]]}, "unknown arm 'wrds'; did you mean 'words'"),
        ({"stages": [["none"], ["all"]]}, "member of itself"),
        ({"decider": ""}, "decider: .*at least 1 character"),
    ],
)
def test_wrong_stages_are_refused(wrong: dict[str, Any], message: str) -> None:
    specs = {**SPECS, "all": ArmSpec(kind="cascade", params={**PARAMS, **wrong})}
    with pytest.raises(ArmSpecError, match=message):
        ArmGraph(specs).validate(["hashed"])
