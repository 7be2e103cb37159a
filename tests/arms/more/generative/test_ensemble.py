"""Ensembles: members answer at once, and the passages behind one answer win."""

import asyncio
import itertools
import string
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from armwise.arms.base import (
    Arm,
    ArmBuildError,
    ArmError,
    MissingEmbeddingError,
    Passage,
    Query,
    Retrieval,
)
from armwise.arms.corpus import Corpus
from armwise.arms.indexes import PassageVectors
from armwise.arms.llm import UNPROMPTED, Chunk, GeneratorError, Prompt, Write, base
from armwise.arms.llm import prompts as llm_prompts
from armwise.arms.models import Backbone
from armwise.arms.more.generative import ensemble
from armwise.arms.more.generative.ensemble import SYSTEM, EnsembleArm, EnsembleParams, SelectorInputs, vote
from armwise.arms.retrievers import ArmGraph, NoRetrieval, build_arm, dense, prepare
from armwise.arms.retrievers import bm25 as lexical
from armwise.arms.retrievers.bm25 import BM25Params
from armwise.arms.retrievers.catalog import ArmSpecError
from armwise.arms.retrievers.dense import DenseParams
from armwise.arms.retrievers.kind import AnswerSelector, ArmSpec, MemberRanker, Resources, SelectorSpec
from armwise.arms.tokenizer import normalise
from armwise.feedback.answer_metrics import words
from tests.arms.contract import DIM, QUESTIONS, ask, check_arm

WHICH = Query("Which city?")


class Says:
    """Finds one passage whose text is what the model below will answer."""

    def __init__(self, answer: str, *, steps: int = 1, tokens: int = 0, name: str = "") -> None:
        self.name = name or answer
        self.backbones = frozenset({f"of {answer}"})
        self._found = Retrieval((Passage(self.name, "", answer or "?", 0.5),), steps, tokens)

    def search(self, query: Query, k: int) -> Retrieval:
        del query, k
        return self._found


class Fails(Says):
    """Finds nothing, with an error."""

    def search(self, query: Query, k: int) -> Retrieval:
        del query, k
        raise ArmError(f"{self.name} is broken")


class Model:
    """Answers with the text of the passage, or `London` without one; picks what is left of a list."""

    def __init__(self, *picks: str | GeneratorError) -> None:
        self._picks = list(picks)
        self.asked_to_pick: list[str] = []
        self.tokens = 0

    def __call__(self, prompt: Prompt) -> tuple[str, Chunk]:
        text, last = asyncio.run(base.complete(base.ScriptedGenerator(self._reply), prompt))
        self.tokens += last.prompt_tokens + last.completion_tokens
        return text, last

    def _reply(self, prompt: Prompt) -> str:
        system, *_, last = (message["content"] for message in prompt.messages)
        if system == SYSTEM:
            self.asked_to_pick.append(last)
            pick = self._picks.pop(0)
            if isinstance(pick, GeneratorError):
                raise pick
            return pick
        if "[1]\n" not in system:
            return "London"
        answer = system.partition("[1]\n")[2].partition("\n</passages>")[0].partition("\n\n")[0]
        return "" if answer == "?" else answer


def of(model: Write, *members: Arm, **params: str) -> EnsembleArm:
    own = EnsembleParams.model_validate({"arms": [member.name for member in members], **params})
    return EnsembleArm("all", members, own, model)


def winner(retrieval: Retrieval) -> str:
    return retrieval.passages[0].id


# The vote.


@given(st.lists(st.sampled_from(["", "Rome", "rome.", "Paris", "the Paris", "Oslo"]), min_size=1))
def test_the_winner_is_the_first_with_most_votes(answers: list[str]) -> None:
    votes = Counter(map(normalise, answers))
    votes[""] = 0
    counts = [votes[normalise(answer)] for answer in answers]
    assert vote(answers) == counts.index(max(counts))


@given(st.text(alphabet=string.printable))
@example("The A.")
def test_answers_are_compared_as_they_are_scored(answer: str) -> None:
    assert normalise(answer) == " ".join(words(answer))


# The arm.


def test_the_passages_behind_the_vote_are_returned() -> None:
    members = [Says("Rome", name="a"), Says("Paris", name="b"), Says("paris.", name="c")]
    found = of(Model(), *members).search(WHICH, 4)
    assert found.passages == (Passage("b", "", "Paris", 0.5),)


def test_a_member_that_looks_nothing_up_answers_too_and_may_win() -> None:
    members: list[Arm] = [Says("Rome", steps=2), NoRetrieval("none"), Says("London.")]
    found = of(Model(), *members).search(WHICH, 4)
    assert (found.passages, found.steps) == ((), 3)


def test_steps_and_tokens_of_members_and_model_add_up() -> None:
    model = Model("2")
    members = [Says("Rome", steps=1, tokens=10), Says("Paris", steps=3, tokens=20)]
    found = of(model, *members, select="llm").search(WHICH, 4)
    assert winner(found) == "Paris"
    assert (found.steps, found.tokens) == (4, 30 + model.tokens)
    assert model.tokens > 0


def test_a_member_that_fails_is_left_out() -> None:
    members = [Fails("Rome"), Says("Paris", steps=2), Fails("Rome")]
    found = of(Model(), *members).search(WHICH, 4)
    assert (winner(found), found.steps) == ("Paris", 2)


def test_a_member_that_the_model_cannot_read_is_left_out() -> None:
    model = Model()

    def write(prompt: Prompt) -> tuple[str, Chunk]:
        if "Rome" in prompt.messages[0]["content"]:
            raise GeneratorError("too long")
        return model(prompt)

    assert winner(of(write, Says("Rome"), Says("Paris")).search(WHICH, 4)) == "Paris"


def test_without_a_model_the_arm_says_so(corpus: Corpus, tmp_path: Path) -> None:
    params = EnsembleParams(arms=("Rome", "Paris"))
    arm = ensemble.EnsembleArm.build("all", params, Resources(corpus, tmp_path, {}, {}), Says)
    with pytest.raises(ArmError, match="no language model is configured"):
        arm.search(WHICH, 4)


def test_an_answer_has_its_budgets() -> None:
    prompts: list[Prompt] = []

    def write(prompt: Prompt) -> tuple[str, Chunk]:
        prompts.append(prompt)
        return "Rome", Chunk()

    members: list[Arm] = [Says("one two three"), NoRetrieval("none")]
    params = EnsembleParams(arms=("a", "b"), word_budget=2, max_tokens=7)
    EnsembleArm("all", members, params, write).search(WHICH, 4)
    assert {prompt.max_tokens for prompt in prompts} == {7}
    (shown,) = [m["content"] for p in prompts for m in p.messages if "[1]" in m["content"]]
    assert "one two" in shown
    assert "three" not in shown


# The language model as the selector.


@pytest.mark.parametrize(
    ("picks", "expected"),
    [
        (["3"], "Oslo"),
        (["Answer 2 is best."], "Paris"),
        (["4", "3"], "Oslo"),
        (["0", "2"], "Paris"),
        (["Oslo", "[3]"], "Oslo"),
        (["13", "none"], "Rome"),
        (["", ""], "Rome"),
        ([GeneratorError("silent")], "Rome"),
        (["9", GeneratorError("silent")], "Rome"),
    ],
)
def test_a_wrong_pick_is_asked_for_again_then_voted(picks: list[str | GeneratorError], expected: str) -> None:
    model = Model(*picks)
    members = [Says("Rome"), Says("Paris"), Says("Oslo"), Says("rome", name="Rome again")]
    assert winner(of(model, *members, select="llm").search(WHICH, 4)) == expected
    assert len(model.asked_to_pick) == len(picks)
    first, *again = model.asked_to_pick
    assert "Question: Which city?\n\n<answers>\n1. Rome\n2. Paris\n3. Oslo\n</answers>\n\n" in first
    assert again in ([], ["Write only a number from 1 to 3."])


@pytest.mark.parametrize("answers", [["Rome", "rome."], ["", "Rome"]])
def test_with_nothing_to_pick_from_no_model_is_asked(answers: list[str]) -> None:
    model = Model()
    members = [Says(answer, name=answer or "silent") for answer in answers]
    assert winner(of(model, *members, select="llm").search(WHICH, 4)) == "Rome"
    assert model.asked_to_pick == []


# A router as the selector.


class Fake(AnswerSelector):
    """Picks the answer that comes last by the alphabet, and keeps what it was shown."""

    def __init__(self, k: int = 2) -> None:
        self.k = k
        self.shown: list[tuple[Query, list[str], list[list[str]], dict[str, tuple[int, ...]]]] = []

    def select(
        self,
        query: Query,
        answers: Sequence[str],
        found: Sequence[Sequence[Passage]],
        vectors: Mapping[str, np.ndarray],
    ) -> int:
        ids = [[passage.id for passage in passages] for passages in found]
        self.shown.append((query, [*answers], ids, {name: v.shape for name, v in vectors.items()}))
        return max(range(len(answers)), key=answers.__getitem__)


class Finds:
    """Finds the first passages of the corpus, and as many as it is asked for."""

    def __init__(self, name: str, corpus: Corpus, *others: Passage) -> None:
        self.name = name
        self.backbones: frozenset[str] = frozenset()
        self._passages = (*others, *corpus.passages(range(len(corpus))))
        self.asked_for: list[int] = []

    def search(self, query: Query, k: int) -> Retrieval:
        del query
        self.asked_for.append(k)
        return Retrieval(self._passages[:k])


LEARNED = {"select": "learned", "router": "/routers/cities", "backbone": "hashed"}


@pytest.fixture(scope="module")
def vectors(resources: Resources) -> PassageVectors:
    return PassageVectors(resources.corpus, resources.indexes, resources.backbones["hashed"])


def learned(
    selector: AnswerSelector, vectors: PassageVectors, write: Write, *members: Arm, **params: str
) -> EnsembleArm:
    own = EnsembleParams.model_validate({"arms": [member.name for member in members], **LEARNED, **params})
    return EnsembleArm("all", members, own, write, SelectorInputs(selector, "hashed", vectors))


def hashed(text: str) -> Query:
    return ask(text, frozenset({"hashed"}))


def test_a_router_sees_answers_and_passages_of_all(corpus: Corpus, vectors: PassageVectors) -> None:
    selector, web = Fake(), Passage("web", "", "Zagreb")
    members = [Says("Rome", tokens=5), Finds("corpus", corpus, web), Says("Paris", steps=2)]
    model = Model()
    query = hashed("Which city?")
    found = learned(selector, vectors, model, *members).search(query, 4)
    assert found.passages == (web, *corpus.passages(range(3))), "four, of which the router saw two"
    assert (found.steps, found.tokens) == (4, 5 + model.tokens), "a router takes no token"
    assert selector.shown == [
        (query, ["Rome", "Zagreb", "Paris"], [["Rome"], ["web", "vienna"], ["Paris"]], {"vienna": (DIM,)})
    ]


@pytest.mark.parametrize(("k", "depth", "returned"), [(1, 3, 1), (3, 3, 3), (5, 5, 5)])
def test_members_answer_from_what_the_router_knows(
    corpus: Corpus, vectors: PassageVectors, k: int, depth: int, returned: int
) -> None:
    selector, deep = Fake(k=3), Finds("corpus", corpus)
    prompts: list[Prompt] = []

    def write(prompt: Prompt) -> tuple[str, Chunk]:
        prompts.append(prompt)
        return "Rome", Chunk()

    found = learned(selector, vectors, write, deep, Says("Paris")).search(hashed("Which city?"), k)
    assert deep.asked_for == [depth]
    assert len(found.passages) == returned
    (shown,) = [system for p in prompts if "[2]" in (system := p.messages[0]["content"])]
    assert "[3]" in shown
    assert "[4]" not in shown
    assert selector.shown[0][2] == [["vienna", "danube", "austria"], ["Paris"]]


def test_where_a_member_fails_the_others_vote(vectors: PassageVectors) -> None:
    selector = Fake()
    members = [Says("Paris"), Fails("Oslo"), Says("Rome", name="a"), Says("rome", name="b")]
    found = learned(selector, vectors, Model(), *members).search(hashed("Which city?"), 4)
    assert winner(found) == "a"
    assert selector.shown == [], "it compares the answers of all members"


def test_without_its_embedding_a_router_spends_nothing(
    vectors: PassageVectors,
) -> None:
    model = Model()
    arm = learned(Fake(), vectors, model, Says("Rome"), Says("Paris"))
    assert arm.backbones == {"hashed", "of Rome", "of Paris"}
    with pytest.raises(MissingEmbeddingError, match="arm 'all' needs a 'hashed' embedding"):
        arm.search(WHICH, 4)
    assert model.tokens == 0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"select": "learned"}, "router: .*`select: learned` needs a router"),
        ({"select": "learned", "router": "/r"}, "backbone: .*`select: learned` needs a backbone"),
        ({**LEARNED, "router": ""}, "router: .*`select: learned` needs a router"),
        ({"router": "/r"}, "router: .*only `select: learned` takes a router"),
        ({"ranker": "/r"}, "backbone: .*a ranker needs a backbone"),
        ({"most": 2}, "most: .*`most` needs a ranker"),
        ({"ranker": "/r", "backbone": "hashed", "most": 3}, "most: .*there are only 2 members"),
        ({**LEARNED, "ranker": "/r"}, "ranker: .*compares the answers of all members"),
        (
            {"select": "llm", "backbone": "b"},
            "backbone: .*only `select: learned` or a ranker takes a backbone",
        ),
        ({**LEARNED, "backbone": "hashd"}, "unknown backbone 'hashd'; did you mean 'hashed'"),
        ({**LEARNED, "form": "shrt"}, "form: Input should be"),
    ],
)
def test_a_router_and_its_backbone_belong_together(wrong: dict[str, str], message: str) -> None:
    spec = ArmSpec(kind="ensemble", params={"arms": ["a", "b"], **wrong})
    specs = {"a": ArmSpec(kind="none"), "b": ArmSpec(kind="bm25"), "all": spec}
    with pytest.raises(ArmSpecError, match=f"arm 'all'.*{message}"):
        ArmGraph(specs).validate(["hashed"])


def with_selector(resources: Resources, specs: Mapping[str, ArmSpec], read: list[SelectorSpec]) -> Resources:
    """Resources of these arms, in which every router is the fake one."""

    def open_fake(wanted: Any) -> Any:
        read.append(wanted)
        return Fake() if isinstance(wanted, SelectorSpec) else Ranks(2, 0, 1)

    return Resources(
        resources.corpus,
        resources.indexes,
        resources.backbones,
        specs,
        write=Model(),
        open_selector=open_fake,
    )


def test_a_router_is_asked_for_with_all_that_it_must_fit(resources: Resources, tmp_path: Path) -> None:
    params = {**LEARNED, "arms": ["none", "words"], "form": "short", "word_budget": 99, "max_tokens": 9}
    specs = {
        "none": ArmSpec(kind="none"),
        "words": ArmSpec(kind="bm25"),
        "all": ArmSpec(kind="ensemble", params=params),
    }
    read: list[SelectorSpec] = []
    have = with_selector(Resources(resources.corpus, tmp_path, resources.backbones, {}), specs, read)
    prepare(have)
    arm = build_arm("all", have)
    writing = llm_prompts.Writing(llm_prompts.Form.SHORT, 99, 9)
    router, encoder = Path("/routers/cities"), resources.backbones["hashed"]
    wanted = SelectorSpec(router, ("none", "words"), "hashed", encoder, writing)
    assert read == [wanted, wanted]
    graph = ArmGraph(specs)
    assert graph.backbones("all") == graph.embeddings("all") == arm.backbones == {"hashed"}
    assert PassageVectors(resources.corpus, tmp_path, encoder).look_up(["vienna"]).keys() == {"vienna"}


def test_without_routers_a_learned_arm_is_not_prepared(resources: Resources) -> None:
    specs = {
        "none": ArmSpec(kind="none"),
        "all": ArmSpec(kind="ensemble", params={**LEARNED, "arms": ["none", "none"]}),
    }
    have = Resources(resources.corpus, resources.indexes, resources.backbones, specs)
    with pytest.raises(ArmBuildError, match="router /routers/cities: trained routers are not available here"):
        prepare(have)


# A router as the ranker.


class Ranks(MemberRanker):
    """Ranks members in a given order."""

    def __init__(self, *order: int) -> None:
        self._order = order

    def rank(self, query: Query) -> Sequence[int]:
        query.embedding("hashed", arm="test")
        return self._order


def ranked(order: Sequence[int], *members: Arm, model: Write | None = None, **params: object) -> EnsembleArm:
    own = EnsembleParams.model_validate(
        {"arms": [member.name for member in members], "ranker": "/r", "backbone": "hashed", **params}
    )
    return EnsembleArm("all", members, own, model or Model(), ranker=Ranks(*order))


def test_only_the_members_that_the_ranker_puts_first_run() -> None:
    members = [Fails("Rome"), Says("Paris", steps=2, tokens=5), Says("Oslo", steps=4, tokens=7)]
    model = Model()
    found = ranked([2, 1, 0], *members, model=model, most=2).search(hashed("Which city?"), 4)
    assert (winner(found), found.answer) == ("Oslo", "Oslo")
    assert (found.steps, found.tokens) == (6, 12 + model.tokens)
    (stage,) = found.stages
    assert (stage.arms, stage.failed, stage.picked) == (("Oslo", "Paris"), (), "Oslo")


def test_the_router_decides_a_tie_of_the_vote() -> None:
    members = [Says("Rome"), Says("Paris"), Says("Oslo"), Says("Oslo", name="Oslo again")]
    for order in itertools.permutations(range(3)):
        found = ranked([*order, 3], *members).search(hashed("Which city?"), 4)
        assert found.answer == members[order[0]].name
    found = ranked([0, 2, 3, 1], *members).search(hashed("Which city?"), 4)
    assert found.answer == "Oslo", "a majority outvotes the first member"


@given(
    answers=st.lists(st.sampled_from(["", "Rome", "Paris", "Oslo"]), min_size=3, max_size=5),
    order=st.permutations(range(5)),
    most=st.integers(1, 5),
)
def test_ranking_and_cutting_equals_an_ensemble_of_the_first(
    answers: list[str], order: list[int], most: int
) -> None:
    members = [Says(answer, name=f"member {at}") for at, answer in enumerate(answers)]
    first, most = [at for at in order if at < len(members)], min(most, len(members))
    found = ranked(first, *members, most=most).search(hashed("Which city?"), 4)
    alone = of(Model(), *(members[at] for at in first[:most])) if most > 1 else None
    expected = alone.search(WHICH, 4).passages if alone else members[first[0]].search(WHICH, 4).passages
    assert found.passages == expected


def test_a_failed_member_is_not_replaced_by_the_next() -> None:
    members = [Says("Rome"), Fails("Paris"), Says("Oslo")]
    found = ranked([1, 2, 0], *members, most=2).search(hashed("Which city?"), 4)
    (stage,) = found.stages
    assert (found.answer, stage.arms, stage.failed, stage.picked) == (
        "Oslo",
        ("Paris", "Oslo"),
        ("Paris",),
        "Oslo",
    )
    with pytest.raises(ArmError, match="every member of arm 'all' failed: Paris: Paris is broken"):
        ranked([1, 2, 0], *members, most=1).search(hashed("Which city?"), 4)


def test_a_question_that_cannot_be_ranked_costs_nothing() -> None:
    model = Model()
    with pytest.raises(MissingEmbeddingError, match="arm 'all' needs a 'hashed' embedding"):
        ranked([0, 1], Says("Rome"), Says("Paris"), model=model).search(WHICH, 4)
    assert model.tokens == 0


@pytest.mark.parametrize(("n_arms", "most", "runs"), [(2, None, 2), (3, None, 3), (5, None, 3), (5, 1, 1)])
def test_expected_work_follows_the_members_that_run(n_arms: int, most: int | None, runs: int) -> None:
    arms = [f"a{at}" for at in range(n_arms)]
    params = EnsembleParams.model_validate(
        {"arms": arms, "ranker": "/r", "backbone": "hashed", "most": most, "max_tokens": 7}
    )
    assert params.most == runs
    assert ensemble.EnsembleArm.steps(params) == runs
    assert ensemble.EnsembleArm.searches(params, "a0") == runs / n_arms
    assert ensemble.EnsembleArm.models(params) == ("/r",)
    written = ensemble.EnsembleArm.bound(params, lambda _: UNPROMPTED).tokens("Which city?")[1]
    assert written == 7 * runs, "as many answers as members run"


# What members are asked.


@pytest.mark.parametrize("form", list(llm_prompts.Form))
def test_members_answer_in_the_form_that_is_asked_for(form: llm_prompts.Form) -> None:
    prompts: list[Prompt] = []

    def write(prompt: Prompt) -> tuple[str, Chunk]:
        prompts.append(prompt)
        return "I think <answer>Rome</answer>", Chunk()

    of(write, Says("Rome"), Says("Rome", name="again"), form=form.value).search(WHICH, 4)
    shown = {prompt.messages[0]["content"] for prompt in prompts}
    assert shown == {llm_prompts.WITH_PASSAGES[form].format(passages="<passages>\n[1]\nRome\n</passages>")}
    assert len(prompts) == 2


def test_answers_are_compared_without_their_reasons() -> None:
    written = {
        "Rome": "So <answer>Rome</answer>",
        "Paris": "So Paris.",
        "again": "Hence <answer>Rome</answer>",
    }
    spent: list[int] = []

    def write(prompt: Prompt) -> tuple[str, Chunk]:
        spent.append(3)
        if prompt.messages[-1]["content"] == llm_prompts.ANSWER_ALONE:
            return "Paris", Chunk(completion_tokens=3)
        system = prompt.messages[0]["content"]
        return next(text for name, text in written.items() if name in system), Chunk(completion_tokens=3)

    members = [Says("Paris"), Says("Rome"), Says("again")]
    found = of(write, *members, form="reasoning").search(WHICH, 4)
    assert winner(found) == "Rome"
    assert (len(spent), found.tokens) == (4, 12), "the second prompt is paid for, too"


# At once.


def meeting(answer: str, barrier: threading.Barrier) -> Arm:
    """Return a member that goes on only when all members are at work."""

    class Meets(Says):
        def search(self, query: Query, k: int) -> Retrieval:
            barrier.wait(timeout=20)
            return super().search(query, k)

    return Meets(answer)


def test_members_work_at_once() -> None:
    barrier = threading.Barrier(3)
    members = [meeting(answer, barrier) for answer in ("Rome", "Paris", "Paris")]
    assert winner(of(Model(), *members).search(WHICH, 4)) == "Paris"


@pytest.mark.slow
def test_nested_ensembles_do_not_wait_for_themselves() -> None:
    model = Model()
    inner = [of(model, Says(city), Says(city), Says("Oslo")) for city in ("Rome", "Paris", "Paris")]
    outer = of(model, of(model, *inner[:2], inner[2]), *inner)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: outer.search(WHICH, 4), range(16)))
    assert [winner(each) for each in found] == ["Paris"] * 16
    assert {each.steps for each in found} == {18}


# On real members.


@pytest.fixture(scope="module")
def resources(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Resources:
    backbones = {"hashed": Backbone(model=f"hashing:{DIM}")}
    indexes = tmp_path_factory.mktemp("indexes")
    have = Resources(corpus, indexes, backbones, {}, write=lambda prompt: Model("2")(prompt))
    lexical.BM25Arm.prepare(BM25Params(), have, None)
    dense.DenseArm.prepare(DenseParams(backbone="hashed"), have, None)
    return have


@pytest.fixture(scope="module")
def member(resources: Resources) -> Callable[[str], Arm]:
    members: dict[str, Arm] = {
        "none": NoRetrieval("none"),
        "words": lexical.BM25Arm.build("words", BM25Params(), resources, NoRetrieval),
        "near": dense.DenseArm.build("near", DenseParams(backbone="hashed"), resources, NoRetrieval),
    }
    return members.__getitem__


@pytest.mark.parametrize("select", ["vote", "llm", "learned", "ranked"])
def test_an_ensemble_keeps_the_contract(
    resources: Resources, member: Callable[[str], Arm], corpus: Corpus, select: str
) -> None:
    own = {"learned": LEARNED, "ranked": {"ranker": "/r", "backbone": "hashed"}}.get(
        select, {"select": select}
    )
    params = EnsembleParams.model_validate({"arms": ["words", "near", "none"], **own})
    assert ensemble.EnsembleArm.members(params) == ("words", "near", "none")
    assert ensemble.EnsembleArm.steps(params) == 3
    arm = ensemble.EnsembleArm.build("all", params, with_selector(resources, {}, []), member)
    assert arm.backbones == {"hashed"}
    check_arm(arm, corpus)


def test_searches_at_once_do_not_disturb_each_other(
    resources: Resources, member: Callable[[str], Arm]
) -> None:
    arm = ensemble.EnsembleArm.build("all", EnsembleParams(arms=("words", "near")), resources, member)
    queries = [ask(question, arm.backbones) for question in QUESTIONS] * 4
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda query: arm.search(query, 3), queries)) == [
            arm.search(query, 3) for query in queries
        ]
