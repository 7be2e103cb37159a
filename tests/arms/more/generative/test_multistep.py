"""Multi-step: what a model says is missing is looked up, and every step is paid for."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from armwise.arms.base import Arm, Passage, Query, Retrieval
from armwise.arms.corpus import Corpus
from armwise.arms.llm import Chunk, Generator, Prompt, Write, catalog
from armwise.arms.llm import base as llm_base
from armwise.arms.llm.llama_cpp import EmbeddedGenerator
from armwise.arms.models import Backbone
from armwise.arms.more.generative.multistep import MultistepArm, MultistepParams, follow_up
from armwise.arms.more.generative.query_variants import QUESTION_WORDS
from armwise.arms.retrievers import NoRetrieval, dense
from armwise.arms.retrievers import bm25 as lexical
from armwise.arms.retrievers.bm25 import BM25Params
from armwise.arms.retrievers.dense import DenseParams
from armwise.arms.retrievers.kind import Resources
from tests.arms.contract import DIM, QUESTIONS, ask

LETTERS = [Passage(letter, "", f"text of {letter}") for letter in "abcdefghijkl"]


def blocking(generator: Generator) -> Write:
    return lambda prompt: asyncio.run(llm_base.complete(generator, prompt))


def saying(reply: Callable[[Prompt], str]) -> Write:
    return blocking(llm_base.ScriptedGenerator(reply))


def done(_: Prompt) -> str:
    return "DONE"


def cannot_write(_: Prompt) -> tuple[str, Chunk]:
    raise AssertionError("the model is not to be asked")


def cannot_embed(_: str, __: frozenset[str]) -> Mapping[str, NDArray[np.float32]]:
    raise AssertionError("nothing is to be embedded")


class Shelf:
    """Returns letters from the first one of the question on, and remembers its queries."""

    def __init__(self, backbones: frozenset[str] = frozenset(), steps: int = 1) -> None:
        self.steps = steps
        self.name = "shelf"
        self.backbones = backbones
        self.queries: list[Query] = []

    def search(self, query: Query, k: int) -> Retrieval:
        self.queries.append(query)
        start = ord(query.text[0]) - ord("a")
        ranked = (LETTERS + LETTERS)[start : start + min(k, len(LETTERS))]
        return Retrieval(tuple(p.replace_score(-rank) for rank, p in enumerate(ranked)), self.steps, tokens=5)


def over(base: Arm, reply: Callable[[Prompt], str], **params: int) -> MultistepArm:
    return MultistepArm("steps", base, MultistepParams(arm=base.name, **params), saying(reply), cannot_embed)


def ids(retrieval: Retrieval) -> str:
    return "".join(passage.id for passage in retrieval.passages)


@pytest.fixture(scope="module")
def resources(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Resources:
    """An encyclopedia whose reader always wants to know of the Danube next, then of Mozart."""

    def reply(prompt: Prompt) -> str:
        return "Mozart opera" if "ten countries" in prompt.messages[0]["content"] else "Danube river"

    return Resources(
        corpus,
        tmp_path_factory.mktemp("indexes"),
        {"hashed": Backbone(model=f"hashing:{DIM}")},
        {},
        lambda text, backbones: ask(text, backbones).embeddings,
        saying(reply),
    )


@pytest.fixture(scope="module")
def bm25(resources: Resources) -> Arm:
    lexical.BM25Arm.prepare(BM25Params(), resources, None)
    return lexical.BM25Arm.build("bm25", BM25Params(), resources, NoRetrieval)


@pytest.fixture(scope="module")
def near(resources: Resources) -> Arm:
    params = DenseParams(backbone="hashed")
    dense.DenseArm.prepare(params, resources, None)
    return dense.DenseArm.build("near", params, resources, NoRetrieval)


@pytest.fixture(scope="module", params=["bm25", "near"])
def base(request: pytest.FixtureRequest) -> Arm:
    arm: Arm = request.getfixturevalue(request.param)
    return arm


@pytest.fixture
def build(base: Arm, resources: Resources) -> Callable[..., Arm]:
    """Return what builds a multi-step arm over the base, as the catalogue would."""

    def built(write: Write = resources.write, **params: int) -> Arm:
        have = replace(resources, write=write)
        return MultistepArm.build("steps", MultistepParams(arm=base.name, **params), have, lambda _: base)

    return built


# On a real base.


def test_what_is_missing_is_found_in_the_next_step(build: Callable[..., Arm], base: Arm) -> None:
    query = ask("What is the capital of Austria?", base.backbones)
    assert "danube" not in [passage.id for passage in base.search(query, 2).passages]
    found = build().search(query, 2)
    assert [passage.id for passage in found.passages] == ["vienna", "danube"]
    assert found.steps == 2


@pytest.mark.parametrize("question", QUESTIONS)
def test_where_nothing_is_missing_the_base_is_followed(
    build: Callable[..., Arm], base: Arm, question: str
) -> None:
    query = ask(question, base.backbones)
    found, plain = build(saying(done)).search(query, 4), base.search(query, 4)
    assert [p.replace_score(0.0) for p in found.passages] == [p.replace_score(0.0) for p in plain.passages]
    assert found.steps == 1


def test_a_single_step_asks_no_model(build: Callable[..., Arm], base: Arm) -> None:
    found = build(cannot_write, max_steps=1).search(ask("river", base.backbones), 4)
    assert (len(found.passages), found.steps, found.tokens) == (4 if base.backbones else 2, 1, 0)


# Step by step.


@pytest.mark.parametrize(
    ("k", "params", "expected", "steps"),
    [
        (4, {}, "abij", 2),
        (5, {}, "abcij", 2),
        (1, {}, "a", 1),
        (5, {"max_steps": 3}, "abije", 3),
        (4, {"max_steps": 3}, "abie", 3),
    ],
)
def test_the_places_are_divided_among_the_steps(
    k: int, params: dict[str, int], expected: str, steps: int
) -> None:
    def reply(prompt: Prompt) -> str:
        return "e" if "text of i" in prompt.messages[0]["content"] else "i"

    found = over(Shelf(), reply, **params).search(Query("a"), k)
    assert (ids(found), found.steps) == (expected, steps)


def test_passages_that_were_found_before_take_no_further_place() -> None:
    replies = iter(["l", "e"])  # l, a, b, c and e, f: what is new of them is l, c and e, f
    found = over(Shelf(), lambda _: next(replies), max_steps=3).search(Query("a"), 6)
    assert ids(found) == "ablcef"


def test_scores_are_reciprocal_ranks() -> None:
    found = over(Shelf(), lambda _: "f").search(Query("a"), 4)
    assert [(p.id, p.score) for p in found.passages] == [("a", 1.0), ("b", 1 / 2), ("f", 1 / 3), ("g", 1 / 4)]


@pytest.mark.parametrize("base_steps", [1, 2])
def test_steps_and_tokens_of_the_base_and_of_the_model_add_up(base_steps: int) -> None:
    prompts: list[Prompt] = []

    def reply(prompt: Prompt) -> str:
        prompts.append(prompt)
        return "find more of f" if len(prompts) == 1 else "k"

    found = over(Shelf(steps=base_steps), reply, max_steps=3).search(Query("a"), 6)
    read = sum(len(message["content"].split()) for prompt in prompts for message in prompt.messages)
    assert len(prompts) == 2
    assert (found.steps, found.tokens) == (3 * base_steps, 3 * 5 + read + 4 + 1)


def test_the_model_is_shown_question_and_passages() -> None:
    prompts: list[Prompt] = []

    def reply(prompt: Prompt) -> str:
        prompts.append(prompt)
        return "DONE"

    over(Shelf(), reply).search(Query("a " + "long " * 500), 4)
    (prompt,) = prompts
    system, user = (message["content"] for message in prompt.messages)
    assert "[1]\ntext of a\n\n[2]\ntext of b" in system
    assert "text of c" not in system
    assert f"Question: a {'long ' * (QUESTION_WORDS - 1)}".rstrip() + "\n" in user
    assert prompt.max_tokens == 32


@pytest.mark.parametrize("reply", ["", "?!", "A!", "DONE", "Search query: a"])
def test_a_follow_up_that_asks_nothing_new_ends_the_search(reply: str) -> None:
    shelf = Shelf()
    assert over(shelf, lambda _: reply).search(Query("a"), 4).steps == 1
    assert len(shelf.queries) == 1


def test_a_follow_up_that_comes_again_ends_the_search() -> None:
    found = over(Shelf(), lambda _: "e", max_steps=9).search(Query("a"), 12)
    assert found.steps == 2


def test_a_follow_up_is_embedded_and_has_an_own_seed() -> None:
    shelf, vector = Shelf(frozenset({"one", "two"})), np.ones(1, dtype=np.float32)
    asked: list[tuple[str, frozenset[str]]] = []

    def embed(text: str, backbones: frozenset[str]) -> dict[str, NDArray[np.float32]]:
        asked.append((text, backbones))
        return dict.fromkeys(backbones, vector)

    replies = iter(["f", "k"])
    params = MultistepParams(arm="shelf", max_steps=3)
    arm = MultistepArm("steps", shelf, params, saying(lambda _: next(replies)), embed)
    assert arm.backbones == shelf.backbones
    arm.search(Query("a", dict.fromkeys(shelf.backbones, vector), seed=40), 6)
    assert asked == [("f", shelf.backbones), ("k", shelf.backbones)]
    assert [(query.text, query.seed) for query in shelf.queries] == [("a", 40), ("f", 41), ("k", 42)]
    assert all(query.embeddings.keys() == shelf.backbones for query in shelf.queries)


@given(
    k=st.integers(1, 15),
    max_steps=st.integers(1, 5),
    wants=st.lists(st.sampled_from("abcdefghijkl"), min_size=4, max_size=4),
)
def test_whatever_the_model_wants_every_place_is_filled_once(
    k: int, max_steps: int, wants: list[str]
) -> None:
    left = iter(wants)
    params = MultistepParams(arm="shelf", max_steps=max_steps)
    arm = MultistepArm("steps", Shelf(), params, saying(lambda _: next(left)), cannot_embed)
    found = arm.search(Query("a"), k)
    assert len(found.passages) == len(set(ids(found))) == min(k, len(LETTERS))
    assert ids(found)[0] == "a"
    assert 1 <= found.steps <= max_steps


# What goes wrong.


# What a model writes.


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("height of Tokyo Tower", "height of Tokyo Tower"),
        ("\n\n  height of Tokyo Tower  \nbecause it is missing", "height of Tokyo Tower"),
        ('**Search query:** "height of Tokyo Tower"', "height of Tokyo Tower"),
        ("Follow-up query: Tokyo", "Tokyo"),
        ("query languages of databases", "query languages of databases"),
        ("All is there: DONE", ""),
        ("**done**", ""),
        ("who has done it", "who has done it"),
        ("DONEGAL county", "DONEGAL county"),
        ("...", ""),
        ("", ""),
    ],
)
def test_the_query_is_read_out_of_what_a_model_wrote(text: str, expected: str) -> None:
    assert follow_up(text) == expected


@given(st.text())
def test_any_text_gives_one_line(text: str) -> None:
    assert len(follow_up(text).splitlines()) <= 1


@pytest.mark.slow
def test_a_real_model_leads_to_a_second_step(bm25: Arm, resources: Resources) -> None:
    generator = EmbeddedGenerator(catalog.DEFAULT_MODEL, context_tokens=512, slots=1, threads=1)
    params = MultistepParams(arm=bm25.name)
    arm = MultistepArm("steps", bm25, params, blocking(generator), resources.embed)
    query = ask("Who composed the opera about the river?", bm25.backbones)
    found = arm.search(query, 4)
    assert [p.id for p in found.passages[:2]] == [p.id for p in bm25.search(query, 2).passages]
    assert found.steps == 2
    assert found.tokens > 60  # the prompt and the follow-up
    asyncio.run(generator.close())
