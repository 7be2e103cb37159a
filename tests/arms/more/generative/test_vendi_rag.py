"""Vendi-RAG's loop: each grade sets the next diversity, and the best round is returned."""

import asyncio
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from armwise.arms.base import Arm, ArmError, Passage, Query, Retrieval
from armwise.arms.corpus import Corpus
from armwise.arms.llm import GeneratorError, Prompt, Write, base, judge
from armwise.arms.models import Backbone
from armwise.arms.more import vendi
from armwise.arms.more.generative import vendi_rag
from armwise.arms.more.generative.vendi_rag import VendiRagArm, VendiRagParams
from armwise.arms.retrievers import NoRetrieval
from armwise.arms.retrievers.kind import Resources
from tests.arms.contract import DIM, ask

STEPS, TOKENS = 2, 3
"""What a round of the search below takes."""


def blocking(generator: base.ScriptedGenerator) -> Write:
    return lambda prompt: asyncio.run(base.complete(generator, prompt))


def is_judged(prompt: Prompt) -> bool:
    return prompt.messages[0]["content"] == judge.ANSWER.system


class Search:
    """Finds one passage, named after the diversity, and remembers what it was asked for."""

    def __init__(self, name: Callable[[float], str] = str) -> None:
        self.diversities: list[float] = []
        self._name = name

    def __call__(self, query: Query, k: int, diversity: float) -> Retrieval:
        del query, k
        self.diversities.append(diversity)
        return Retrieval((Passage(self._name(diversity), "", "A passage.", diversity),), STEPS, TOKENS)


class Model:
    """Answers with three words, and grades with what is left of a list."""

    def __init__(self, grades: Sequence[float | str]) -> None:
        self._grades = list(grades)
        self.prompts: list[Prompt] = []

    def __call__(self, prompt: Prompt) -> str:
        self.prompts.append(prompt)
        if not is_judged(prompt):
            return "Just an answer"
        grade = self._grades.pop(0)
        return grade if isinstance(grade, str) else f'{{"score": {grade}}}'

    @property
    def tokens(self) -> int:
        """Words read, and written: three for an answer, two for a grade."""
        read = sum(len(m["content"].split()) for prompt in self.prompts for m in prompt.messages)
        return read + sum(2 if is_judged(prompt) else 3 for prompt in self.prompts)


def loop(search: Search, model: Model, **params: float) -> VendiRagArm:
    own = VendiRagParams.model_validate({"backbone": "hashed", **params})
    return VendiRagArm("loop", search, own, blocking(base.ScriptedGenerator(model)))


@pytest.mark.parametrize(
    ("grades", "params", "diversities", "best"),
    [
        ([4, 5, 7], {}, [0.8, 0.6, 0.5], "0.5"),
        ([4, 7, 6, 1], {"rounds": 4}, [0.8, 0.6, 0.3, 0.4], "0.6"),
        ([7, 4], {"rounds": 2}, [0.8, 0.3], "0.8"),
        ([5, 5], {"rounds": 3}, [0.8, 0.5], "0.8"),  # 0.5 again; of two that are as good, the first
        ([9], {}, [0.8], "0.8"),
        ([7.5, 8], {"rounds": 2}, [0.8, 0.2], "0.2"),  # to tenths
        ([4, 10], {"diversity": 0.0}, [0.0, 0.6], "0.6"),
        ([2], {}, [0.8], "0.8"),  # the diversity would not change
        ([4, 2], {}, [0.8, 0.6], "0.8"),  # back to where it began
        ([0], {"rounds": 1}, [0.8], "0.8"),
    ],
)
def test_each_grade_sets_the_next_diversity(
    grades: list[float], params: dict[str, float], diversities: list[float], best: str
) -> None:
    search, model = Search(), Model(grades)
    found = loop(search, model, **params).search(Query("?"), 1)
    assert search.diversities == diversities
    assert found.passages == (Passage(best, "", "A passage.", float(best)),)
    assert found.steps == STEPS * len(diversities)
    assert found.tokens == TOKENS * len(diversities) + model.tokens
    assert len(model.prompts) == 2 * len(diversities)


@given(
    st.lists(st.integers(0, 10), min_size=12, max_size=12),
    st.integers(1, 12),
    st.sampled_from([0.0, 0.25, 0.8, 1.0]),
)
def test_no_diversity_is_tried_twice(grades: list[int], rounds: int, diversity: float) -> None:
    search = Search()
    found = loop(search, Model(grades), rounds=rounds, diversity=diversity).search(Query("?"), 1)
    tried = search.diversities
    assert tried[0] == diversity
    assert tried[1:] == [(10 - grade) / 10 for grade in grades[: len(tried) - 1]]
    assert len(tried) == len(set(tried)) <= rounds
    best = max(range(len(tried)), key=grades.__getitem__)
    assert found.passages[0].id == str(tried[best])


def test_passages_that_come_back_are_not_judged_again() -> None:
    search, model = Search(lambda _: "always this"), Model([4])
    found = loop(search, model).search(Query("?"), 1)
    assert search.diversities == [0.8, 0.6]
    assert (found.steps, found.tokens) == (2 * STEPS, 2 * TOKENS + model.tokens)
    assert len(model.prompts) == 2


def test_model_and_judge_are_shown_the_same_passages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vendi_rag, "WORD_BUDGET", 1)
    monkeypatch.setattr(vendi_rag, "MAX_TOKENS", 2)
    model = Model([9])
    loop(Search(), model).search(Query("Who?"), 1)
    answering, judging = model.prompts
    assert "[1]\nA\n" in answering.messages[0]["content"]
    assert answering.messages[-1]["content"] == "Who?"
    assert answering.max_tokens == 2
    assert judging.messages[-1]["content"].startswith(
        "<passages>\n[1]\nA\n</passages>\n\n<question>\nWho?\n</question>\n<answer>\nJust an\n"
    )


def test_a_judge_that_never_grades_fails_the_first_round() -> None:
    model = Model(["Very good"] * 2)
    told = r"arm 'loop': .* in 2 attempts.*'Very good'"
    with pytest.raises(judge.JudgeError, match=told) as failed:
        loop(Search(), model).search(Query("?"), 1)
    assert failed.value.tokens == TOKENS + model.tokens


def test_a_judge_that_no_longer_grades_ends_the_search() -> None:
    search, model = Search(), Model([4, "Very good", "Very good"])
    found = loop(search, model).search(Query("?"), 1)
    assert [passage.id for passage in found.passages] == ["0.8"]
    assert (found.steps, found.tokens) == (2 * STEPS, 2 * TOKENS + model.tokens)


def test_a_model_that_fails_is_told_with_the_arm() -> None:
    failing = blocking(base.ScriptedGenerator({}, error=GeneratorError("out of memory")))
    arm = VendiRagArm("loop", Search(), VendiRagParams(backbone="hashed"), failing)
    with pytest.raises(ArmError, match="arm 'loop' failed to answer or to judge: out of memory"):
        arm.search(Query("?"), 1)


# On the real Vendi.


@pytest.fixture(scope="module")
def resources(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Resources:
    """An encyclopedia whose judge thinks the better of passages the more of them tell of a river."""

    def reply(prompt: Prompt) -> str:
        told = prompt.messages[-1]["content"]
        return f'{{"score": {min(8, told.count("river") + 3)}}}' if is_judged(prompt) else "The Danube."

    backbones = {"hashed": Backbone(model=f"hashing:{DIM}")}
    write = blocking(base.ScriptedGenerator(reply))
    have = Resources(corpus, tmp_path_factory.mktemp("indexes"), backbones, {}, write=write)
    VendiRagArm.prepare(VendiRagParams(backbone="hashed"), have, None)
    return have


@pytest.fixture(scope="module")
def arm(resources: Resources) -> Arm:
    return VendiRagArm.build("loop", VendiRagParams(backbone="hashed"), resources, NoRetrieval)


def test_a_single_round_finds_what_vendi_finds(resources: Resources) -> None:
    once = VendiRagParams(backbone="hashed", rounds=1, diversity=0.35, depth=9)
    plain = vendi.VendiParams(backbone="hashed", diversity=0.35, depth=9)
    query = ask("Which river flows through Vienna?", frozenset({"hashed"}))
    found = VendiRagArm.build("loop", once, resources, NoRetrieval).search(query, 4)
    assert (
        found.passages == vendi.VendiArm.build("v", plain, resources, NoRetrieval).search(query, 4).passages
    )
