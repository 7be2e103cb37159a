"""Looking before the draw: what arms find, what a router makes of it, and what that takes."""

import asyncio
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.typing import NDArray

from armwise.agent.routers import Features, Router, RouterSpec, RoutingDataset, Stage, build_router
from armwise.agent.routers import features as router_features
from armwise.agent.serving.router_scores import RouterScorer
from armwise.agent.turn import Probes, probe
from armwise.arms.base import ArmError, Passage, Query, Retrieval, Usage
from armwise.arms.models.embedding import HashingEmbedder
from tests.agent.fakes import DIM, FakeArms, FakeEmbedders, failing, hanging
from tests.agent.trained_routers import ARMS, trained

NEEDS = {
    "none": frozenset[str](),
    "bm25": frozenset[str](),
    "dense": frozenset({"tiny"}),
    "rrf": frozenset({"tiny", "large"}),
}
QUERY = Query("which river runs through Vienna?", seed=7)


async def looked(arms: FakeArms, embedders: FakeEmbedders | None = None, **changes: object) -> Probes:
    given = {"query": QUERY, "k": 3, "needs": NEEDS, "limit_s": 10.0} | changes
    return await probe(embed=(embedders or FakeEmbedders()).embed, search=arms.search, **given)  # type: ignore[arg-type]


async def test_every_arm_searches_and_the_question_is_embedded_once_a_backbone() -> None:
    arms, embedders = FakeArms(), FakeEmbedders()
    probes = await looked(arms, embedders)
    assert sorted(map(sorted, embedders.calls)) == [["large"], ["tiny"]]
    assert sorted(arms.asked) == sorted(NEEDS)
    assert all((query.seed, k) == (7, 3) for _, query, k in arms.calls)
    assert all(NEEDS[arm] <= query.embeddings.keys() for arm, query, _ in arms.calls)
    assert [passage.id for passage in probes.found["bm25"].passages] == ["bm25-1", "bm25-2", "bm25-3"]
    assert (probes.steps, probes.failed) == (3, {})
    assert probes.seconds > 0.0


async def test_an_embedding_that_is_there_is_not_made_again() -> None:
    arms, embedders = FakeArms(), FakeEmbedders()
    ready = replace(QUERY, embeddings=await FakeEmbedders().embed(QUERY.text, frozenset({"tiny"})))
    await looked(arms, embedders, query=ready)
    assert embedders.calls == [frozenset({"large"})]


async def test_all_arms_search_at_the_same_time() -> None:
    together = asyncio.Barrier(3)

    async def meet(_query: Query, _k: int) -> Retrieval:
        await together.wait()
        return Retrieval()

    names = ("none", "bm25", "dense")
    probes = await looked(FakeArms(dict.fromkeys(names, meet)), needs={name: NEEDS[name] for name in names})
    assert list(probes.found) == list(names)


async def test_an_arm_that_fails_or_hangs_leaves_the_others_alone() -> None:
    probes = await looked(FakeArms({"bm25": failing, "none": hanging}), limit_s=0.01)
    assert list(probes.found) == ["dense", "rrf"]
    assert str(probes.failed["bm25"]) == "the index is gone"
    assert isinstance(probes.failed["none"], TimeoutError)
    assert probes.seconds >= 0.01, "what an arm that fails took is paid for, too"


async def test_seconds_of_embedding_and_search_are_charged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0

    class Slow(FakeEmbedders):
        async def embed(self, question: str, backbones: frozenset[str]) -> dict[str, NDArray[np.float32]]:
            nonlocal now
            now += 2.0
            return await super().embed(question, backbones)

    async def search(_query: Query, _k: int) -> Retrieval:
        nonlocal now
        now += 0.5
        return Retrieval()

    monkeypatch.setattr("armwise.agent.turn.probes.time", SimpleNamespace(perf_counter=lambda: now))
    probes = await looked(FakeArms({"dense": search}), Slow(), needs={"dense": NEEDS["dense"]})
    assert probes.seconds == 2.5


async def test_a_failing_embedding_is_charged_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0

    async def embed(_question: str, _backbones: frozenset[str]) -> dict[str, NDArray[np.float32]]:
        nonlocal now
        now += 2.0
        raise ArmError("no encoder")

    monkeypatch.setattr("armwise.agent.turn.probes.time", SimpleNamespace(perf_counter=lambda: now))
    needs = dict.fromkeys(("dense", "rrf"), frozenset({"tiny"}))
    probes = await probe(QUERY, 3, needs, embed, FakeArms().search, 10.0)
    assert (probes.seconds, list(probes.failed)) == (2.0, ["dense", "rrf"])


async def test_arms_that_search_the_same_search_once_and_are_charged_once() -> None:
    arms = FakeArms()
    same = {"none": "", "bm25": "", "dense": "vectors", "rrf": "vectors"}
    probes = await looked(arms, searched=same)
    assert sorted(arms.asked) == ["bm25", "dense", "none"]
    assert [*probes.found] == [*NEEDS]
    assert probes.found["rrf"].passages == probes.found["dense"].passages
    assert (probes.found["rrf"].steps, probes.steps) == (0, 2)


async def test_what_a_search_has_read_is_that_of_the_arm_that_searched_alone() -> None:
    spent = Retrieval(steps=2, tokens=9, usage=Usage(4, 2))

    async def search(_query: Query, _k: int) -> Retrieval:
        return spent

    probes = await looked(FakeArms({"dense": search}), searched={"dense": "vectors", "rrf": "vectors"})
    assert probes.found["dense"] == spent
    assert probes.found["rrf"] == Retrieval(steps=0)


async def test_looking_up_kept_searches_takes_time_of_the_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0

    async def recall(_arm: str, _query: Query, _k: int) -> Retrieval:
        nonlocal now
        now += 0.25
        return Retrieval(steps=0, cached=True)

    monkeypatch.setattr("armwise.agent.turn.probes.time", SimpleNamespace(perf_counter=lambda: now))
    probes = await looked(FakeArms(), recall=recall, needs={"none": frozenset[str]()})
    assert (probes.seconds, probes.steps) == (0.25, 0)


async def test_a_search_that_fails_fails_all_arms_that_search_the_same_and_is_charged_once() -> None:
    error = ArmError("gone")

    async def fail(_query: Query, _k: int) -> Retrieval:
        raise error

    arms = FakeArms({"dense": fail})
    probes = await looked(arms, searched={"dense": "vectors", "rrf": "vectors"})
    assert probes.failed == {"dense": error, "rrf": error}
    assert sorted(arms.asked) == ["bm25", "dense", "none"]


async def test_what_was_found_before_is_neither_searched_nor_embedded_nor_charged() -> None:
    arms, embedders = FakeArms(), FakeEmbedders()
    kept = Retrieval((Passage("kept", "", ""),), steps=0, cached=True)
    arms.kept = {"dense": kept, "rrf": kept}
    probes = await looked(arms, embedders, recall=arms.recall)
    assert embedders.calls == []
    assert sorted(arms.asked) == ["bm25", "none"]
    assert probes.found["dense"] == probes.found["rrf"] == kept
    assert probes.steps == 1


async def test_an_encoder_that_fails_fails_the_arms_that_need_it() -> None:
    class Half(FakeEmbedders):
        async def embed(self, question: str, backbones: frozenset[str]) -> dict[str, NDArray[np.float32]]:
            if "large" in backbones:
                raise ArmError("no encoder")
            return await super().embed(question, backbones)

    arms = FakeArms()
    probes = await looked(arms, Half())
    assert list(probes.found) == ["none", "bm25", "dense"]
    assert str(probes.failed["rrf"]) == "no encoder"
    assert "rrf" not in arms.asked


async def test_a_bug_in_an_arm_is_no_failure_of_it() -> None:
    async def broken(_query: Query, _k: int) -> Retrieval:
        raise KeyError("a bug")

    with pytest.raises(KeyError, match="a bug"):
        await looked(FakeArms({"bm25": broken}))


def test_what_an_arm_failed_with_is_raised_where_it_is_drawn() -> None:
    probes = Probes({"bm25": Retrieval(steps=2, tokens=5)}, {"dense": ArmError("gone")}, 0.5)
    assert probes.get("bm25") == Retrieval(steps=2, tokens=5)
    assert probes.get("none") is None, "it was not asked"
    with pytest.raises(ArmError, match="gone"):
        probes.get("dense")
    assert probes.steps == 2


# -- a trained router at work ------------------------------------------------------------------------


class Watched(Router):
    """Scores arms by one number and keeps what it was shown."""

    kind = "watched"

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.shown: list[Features] = []

    @property
    def params(self) -> Mapping[str, object]:
        return {}

    def _fit(self, labels: RoutingDataset) -> None: ...

    def _scores(self, features: Features) -> NDArray[np.float64]:
        self.shown.append(features)
        return np.tile(np.arange(len(features.arms), dtype=np.float64), (len(features), 1))

    def _state(self) -> Mapping[str, NDArray[np.float64]]:
        return {}

    def _restore(self, schema: object, state: object) -> None: ...


class Corpus:
    """Vectors of the passages that it knows; counts how often it is asked."""

    def __init__(self, *known: str) -> None:
        self.vectors = dict(zip(known, HashingEmbedder(DIM).encode_passages(known), strict=True))
        self.calls: list[tuple[str, list[str]]] = []

    async def look(self, backbone: str, ids: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        self.calls.append((backbone, list(ids)))
        return {name: self.vectors[name] for name in ids if name in self.vectors}


def found(*ids: str) -> Retrieval:
    return Retrieval(tuple(Passage(name, "", "", 1.0 / rank) for rank, name in enumerate(ids, start=1)))


async def asked(text: str) -> Query:
    return Query(text, await FakeEmbedders().embed(text, frozenset({"tiny"})))


async def test_a_router_of_the_question_is_shown_the_question_alone() -> None:
    router, corpus = Watched(Stage.QUESTION), Corpus()
    scorer = RouterScorer(trained(router), corpus.look, 1.0)
    assert (scorer.backbone, scorer.arms, scorer.k) == ("tiny", frozenset(ARMS), 0)
    query = await asked("who wrote Emma?")
    assert await scorer.scores(query, ["dense", "none"], {}) == {"dense": 0.0, "none": 1.0}
    (shown,) = router.shown
    assert (shown.arms, shown.texts, shown.retrieved) == (("dense", "none"), ("who wrote Emma?",), None)
    np.testing.assert_array_equal(shown.question, router_features.build_question_table(["who wrote Emma?"]))
    np.testing.assert_array_equal(shown.embedding[0], query.embeddings["tiny"])
    assert corpus.calls == []


async def test_a_router_of_what_was_retrieved_is_shown_the_first_passages_of_each_arm() -> None:
    router, corpus = Watched(Stage.RETRIEVED), Corpus("p1", "p2", "p3", "p4")
    scorer = RouterScorer(trained(router), corpus.look, 1.0)
    query = await asked("who wrote Emma?")
    told = {"none": found(), "bm25": found("p1", "p2", "p3"), "dense": found("p4", "p1")}
    await scorer.scores(query, list(ARMS), told)
    assert corpus.calls == [("tiny", ["p1", "p2", "p4"])], "each once, and k of them"
    embedding = query.embeddings["tiny"][None]
    seen = [[], list(found("p1", "p2").passages), list(found("p4", "p1").passages)]
    expected = router_features.build_retrieved_table([query.text], embedding, [seen], corpus.vectors)
    shown = router.shown[0].retrieved
    assert shown is not None
    np.testing.assert_array_equal(shown.values, expected.values)
    assert np.isnan(shown.values[0, 0]).all(), "it found nothing"


async def test_a_passage_of_no_corpus_counts_as_not_found() -> None:
    router, corpus = Watched(Stage.RETRIEVED), Corpus("p1")
    scorer = RouterScorer(trained(router), corpus.look, 1.0)
    told = {"bm25": found("p1", "web-9"), "dense": found("web-8")}
    await scorer.scores(await asked("?"), ["bm25", "dense"], told)
    shown = router.shown[0].retrieved
    assert shown is not None
    assert np.isnan(shown.values[0, 1]).all()
    seen = [list(found("p1").passages), []]
    alone = router_features.build_retrieved_table(["?"], router.shown[0].embedding, [seen], corpus.vectors)
    np.testing.assert_array_equal(shown.values, alone.values)


async def test_vectors_that_do_not_come_are_given_up() -> None:
    async def never(_backbone: str, _ids: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets the event")

    scorer = RouterScorer(trained(Watched(Stage.RETRIEVED)), never, 0.01)
    with pytest.raises(ArmError, match=r"the vectors of 1 passages did not arrive within 0\.01 s"):
        await scorer.scores(await asked("?"), ["bm25"], {"bm25": found("p1")})


class Stuck(Watched):
    """A router that waits, in its thread, until it is let go."""

    def __init__(self) -> None:
        super().__init__(Stage.QUESTION)
        self.free = threading.Event()

    def _scores(self, features: Features) -> NDArray[np.float64]:
        self.free.wait(10.0)
        return super()._scores(features)


async def test_a_router_that_is_stuck_is_given_up_and_keeps_no_thread_of_others() -> None:
    router = Stuck()
    scorer = RouterScorer(trained(router), Corpus().look, 0.01)
    query = await asked("?")
    calls = [scorer.scores(query, ["bm25"], {}) for _ in range(40)]  # more than the loop has threads
    try:
        failed = await asyncio.gather(*calls, return_exceptions=True)
        assert {str(error) for error in failed} == {"the router returned no scores within 0.01 s"}
        assert all(isinstance(error, ArmError) for error in failed)
        assert await asyncio.wait_for(asyncio.to_thread(str, 1), 5.0) == "1"
    finally:
        router.free.set()


async def test_a_router_that_cannot_score_is_away_and_no_bug() -> None:
    scorer = RouterScorer(trained(Watched(Stage.QUESTION)), Corpus().look, 1.0)
    wrong = Query("?", {"tiny": np.full(DIM, np.nan, dtype=np.float32)})
    with pytest.raises(ArmError, match=r"the router cannot score the arms: embedding number 0 of .* is nan"):
        await scorer.scores(wrong, ["bm25"], {})


@pytest.mark.parametrize("stage", [Stage.QUESTION, Stage.RETRIEVED])
async def test_a_rehearsal_asks_the_router_with_nothing_found(stage: Stage) -> None:
    router, corpus, embedders = Watched(stage), Corpus(), FakeEmbedders()
    await RouterScorer(trained(router), corpus.look, 1.0).warm_up(embedders.embed)
    assert [seen.arms for seen in router.shown] == [ARMS]
    assert embedders.calls == [frozenset({"tiny"})]
    opened = [("tiny", ["no passage"])] if stage is Stage.RETRIEVED else []
    assert corpus.calls == opened, "the vectors are opened, and none is read"


async def test_a_real_router_asks_the_arm_whose_passage_is_nearest() -> None:
    corpus = Corpus("emma was written by austen", "the danube")
    router = build_router(RouterSpec(kind="max_sim"))
    scorer = RouterScorer(trained(router), corpus.look, 1.0)
    told = {"none": found(), "bm25": found("the danube"), "dense": found("emma was written by austen")}
    scores = await scorer.scores(await asked("emma was written by whom"), list(ARMS), told)
    assert max(scores, key=lambda arm: scores[arm]) == "dense"
    assert min(scores, key=lambda arm: scores[arm]) == "none"
