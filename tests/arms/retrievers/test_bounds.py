"""What a search may have a language model read and write is said before, and no search exceeds it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from armwise.arms.base import ArmError, Passage, Query
from armwise.arms.corpus import Corpus
from armwise.arms.llm import Chunk, GeneratorError, Prompt
from armwise.arms.llm.pricing import MOST_TOKENS, UNPROMPTED, Bound, most_tokens
from armwise.arms.models import Backbone
from armwise.arms.models.embedding import HashingEmbedder
from armwise.arms.more.generative import vendi_rag
from armwise.arms.more.generative.vendi_rag import VendiRagArm, VendiRagParams
from armwise.arms.retrievers import ArmGraph, ArmSpec, Resources, build_arm, prepare
from armwise.arms.retrievers.kind import CascadeStep
from tests.arms.conftest import keep
from tests.arms.contract import DIM
from tests.arms.more.generative.test_vendi_rag import Search

BACKBONES = {"hashed": Backbone(model=f"hashing:{DIM}")}

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def word(n: int) -> str:
    """Return a word of two letters, which is a token with the space behind it."""
    return LETTERS[n // 26 % 26] + LETTERS[n % 26]


class Greedy:
    """A model that writes as much as it may, and counts what it reads and writes.

    Args:
        separator: Between its words.
        fails_at: Call that fails, after the model has read and written; 0 for none.
    """

    def __init__(self, separator: str = " ", fails_at: int = 0) -> None:
        self.read = self.written = self.calls = 0
        self._separator, self._fails_at = separator, fails_at

    def __call__(self, prompt: Prompt) -> tuple[str, Chunk]:
        self.calls += 1
        read = sum(most_tokens(message["content"]) for message in prompt.messages)
        first = 100 * self.calls
        text = self._separator.join(word(first + n) for n in range(prompt.max_tokens))
        self.read, self.written = self.read + read, self.written + prompt.max_tokens
        if self.calls == self._fails_at:
            raise GeneratorError("away")
        return text, Chunk(finish_reason="length", prompt_tokens=read, completion_tokens=prompt.max_tokens)


class GoesOn:
    """A decider that runs all stages."""

    k = 3

    def decide(self, question: str, answers: Any, found: Any) -> CascadeStep:
        del question, found
        pick = next(at for at, answer in enumerate(answers) if answer is not None)
        return CascadeStep(pick, 0.5, 0.1, True)


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Forty passages of words of two letters."""
    texts = [" ".join(word(7 * i + n * n) for n in range(20)) for i in range(40)]
    passages = tuple(Passage(f"p-{i}", "", text) for i, text in enumerate(texts))
    return keep(tmp_path_factory.mktemp("letters"), passages)


@pytest.fixture(scope="module")
def indexes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("indexes")


@st.composite
def pools(draw: st.DrawFn) -> dict[str, ArmSpec]:
    """Draw arms, of which each may search those before it; the last one is to be searched."""
    specs = {
        "words": ArmSpec(kind="bm25"),
        "near": ArmSpec(kind="dense", params={"backbone": "hashed"}),
    }
    few, tokens, budget = st.integers(1, 3), st.integers(1, 12), st.integers(1, 30)
    forms = st.sampled_from(["direct", "short", "reasoning"])
    for n in range(draw(few)):
        member = draw(st.sampled_from([*specs]))
        other = draw(st.sampled_from([name for name in specs if name != member]))
        answers = {"form": draw(forms), "word_budget": draw(budget), "max_tokens": draw(tokens)}
        ways = st.sampled_from(["rewrite", "decompose", "hyde"])
        kinds: dict[str, dict[str, Any]] = {
            "query_variants": {"arm": member, "way": draw(ways)},
            "multistep": {"arm": member, "max_steps": draw(few)},
            "ensemble": {
                "arms": [member, other],
                "select": draw(st.sampled_from(["vote", "llm"])),
                **answers,
            },
            "cascade": {"stages": [[member], [other]], "decider": "/deciders/all", **answers},
            "rrf": {"arms": [member, other]},
            "expand": {"arm": member},
        }
        kind = draw(st.sampled_from([*kinds]))
        specs[f"arm-{n}"] = ArmSpec(kind=kind, params=kinds[kind])
    return specs


def resources(corpus: Corpus, indexes: Path, specs: Mapping[str, ArmSpec], model: Greedy) -> Resources:
    encode = HashingEmbedder(DIM).encode_queries
    return Resources(
        corpus,
        indexes,
        BACKBONES,
        specs,
        embed=lambda text, names: {name: encode([text])[0] for name in names},
        write=model,
        open_selector=lambda _: GoesOn(),  # type: ignore[arg-type]
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(
    specs=pools(),
    n_words=st.integers(1, 150),
    separator=st.sampled_from([" ", "\n"]),
    fails_at=st.integers(0, 6),
)
@pytest.mark.slow
def test_no_search_exceeds_its_bound(
    letters: Corpus, indexes: Path, specs: dict[str, ArmSpec], n_words: int, separator: str, fails_at: int
) -> None:
    name, model = [*specs][-1], Greedy(separator, fails_at)
    have = resources(letters, indexes, specs, model)
    prepare(have)
    question = " ".join(word(11 * n) for n in range(n_words))
    query = Query(question, {"hashed": HashingEmbedder(DIM).encode_queries([question])[0]}, seed=1)
    try:
        build_arm(name, have).search(query, 4)
    except ArmError:
        assert fails_at
    read, written = ArmGraph(specs).compute_bound(name).tokens(question)
    assert model.written <= written
    assert model.read <= read


EVERY = {
    "base": ArmSpec(kind="bm25"),
    "steps": ArmSpec(kind="multistep", params={"arm": "base", "max_steps": 4}),
    "rewrite": ArmSpec(kind="query_variants", params={"arm": "steps", "way": "rewrite"}),
    "hyde": ArmSpec(kind="query_variants", params={"arm": "steps", "way": "hyde"}),
    "vote": ArmSpec(kind="ensemble", params={"arms": ["rewrite", "base"]}),
    "select": ArmSpec(kind="ensemble", params={"arms": ["vote", "vote"], "select": "llm"}),
    "reason": ArmSpec(kind="ensemble", params={"arms": ["base", "base"], "form": "reasoning"}),
    "cascade": ArmSpec(kind="cascade", params={"stages": [["base"], ["steps"]], "decider": "/d"}),
    "expand": ArmSpec(kind="expand", params={"arm": "steps"}),
    "rrf": ArmSpec(kind="rrf", params={"arms": ["steps", "rewrite", "base"]}),
    "titles": ArmSpec(kind="graph", params={"backbone": "hashed"}),
    "none": ArmSpec(kind="none"),
}

WRITTEN = {
    "base": 0,
    "steps": 3 * 32,
    "rewrite": 128 + 4 * 96,
    "hyde": 128 + 96,
    "vote": 512 + 2 * 32,
    "select": 2 * 576 + 2 * 32 + 2 * 8,
    "reason": 2 * 2 * 32,
    "cascade": 96 + 2 * 32,
    "expand": 2 * 96,
    "rrf": 96 + 512,
    "titles": 0,
    "none": 0,
}


@pytest.mark.parametrize("name", [*EVERY])
def test_a_bound_is_of_all_calls_of_an_arm_and_its_members(name: str) -> None:
    assert ArmGraph(EVERY).compute_bound(name).written == WRITTEN[name]
    assert (ArmGraph(EVERY).compute_bound(name) == UNPROMPTED) == (WRITTEN[name] == 0)


@pytest.mark.parametrize(
    ("rounds", "diversity", "most", "run"),
    [(1, 0.8, 1, 1), (5, 0.8, 5, 5), (99, 0.8, 11, 10), (99, 0.85, 12, 11)],
)
def test_a_loop_is_bounded_by_rounds_and_diversities(
    rounds: int, diversity: float, most: int, run: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vendi_rag, "SATISFIED", 1.0)
    params = {"backbone": "hashed", "rounds": rounds, "diversity": diversity}
    bound = ArmGraph({"loop": ArmSpec(kind="vendi_rag", params=params)}).compute_bound("loop")
    asked_twice_with_room = 2 * 2048  # a grade that was cut short is asked for with more room, and again
    assert bound.written == most * (64 + 48 + asked_twice_with_room)
    model = Grading()
    VendiRagArm("loop", Search(), VendiRagParams.model_validate(params), model).search(Query("Why?"), 4)
    assert model.calls == 3 * run, "each round answers, and is graded in the second attempt"
    assert model.read / run <= bound.tokens("Why?")[0] / most


class Grading(Greedy):
    """A judge that writes a grade in its last attempt: another one each time, and no best one."""

    def __call__(self, prompt: Prompt) -> tuple[str, Chunk]:
        text, last = super().__call__(prompt)
        rounds, attempt = divmod(self.calls - 1, 3)
        grades = (1, 9, 0, 3, 7, 4, 6, 5, 8, 2, 2)  # which 0.8 leads back to, as 0.85 does not
        return (f'{{"score": {grades[rounds]}}}' if attempt == 2 else text), last


def test_arms_nested_beyond_measure_have_a_bound() -> None:
    specs = {"a-0": ArmSpec(kind="bm25")}
    for n in range(200):
        params = {"arm": f"a-{n}", "max_steps": 100}
        specs[f"a-{n + 1}"] = ArmSpec(kind="multistep", params=params)
    assert ArmGraph(specs).compute_bound("a-200").tokens("Why?") == (MOST_TOKENS, MOST_TOKENS)


def test_a_bound_has_the_tokens_of_other_texts_read() -> None:
    without, reading = (Bound.from_call("Pick one.", 32, words=100, read=read) for read in (0, 50))
    assert reading == without + Bound(0, 50, 0)


def test_members_that_are_shared_are_described_once() -> None:
    specs = {"a-0": ArmSpec(kind="multistep", params={"arm": "b"}), "b": ArmSpec(kind="bm25")}
    for n in range(60):
        specs[f"a-{n + 1}"] = ArmSpec(kind="rrf", params={"arms": [f"a-{n}", f"a-{n}", "b"]})
    assert ArmGraph(specs).compute_bound("a-60") == ArmGraph(specs).compute_bound("a-0") * 2**60


@given(
    bound=st.builds(Bound, *[st.integers(0, 50)] * 3),
    times=st.integers(0, 5),
    question=st.text(max_size=50),
    extra=st.integers(0, 50),
)
def test_bounds_add_up(bound: Bound, times: int, question: str, extra: int) -> None:
    read, written = bound.tokens(question)
    assert (bound * times).tokens(question) == (times * read, times * written)
    assert (bound + bound).tokens(question) == (2 * read, 2 * written)
    more, same = bound.searching(1, extra).tokens(question)
    assert (more, same) == (read + bound.questions * extra, written)
    assert bound.searching(0, extra).tokens(question) == bound.searching(0, extra).tokens("")


@pytest.mark.parametrize(
    ("text", "least"),
    [("中" * 300, 300), ("🙂" * 90, 120), ("a b c d", 4), ("Which river?", 4), ("\ud800" * 9, 3)],
)
def test_tokens_are_counted_by_bytes_and_words(text: str, least: int) -> None:
    assert most_tokens(text) == least
