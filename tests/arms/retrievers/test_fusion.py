"""Fusion: what several arms rank high comes first, whatever their scores are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from armwise.arms.base import Arm, Passage, Query, Retrieval
from armwise.arms.corpus import Corpus
from armwise.arms.retrievers.fusion import FusionArm, FusionParams, fuse

PARAMS = FusionParams(arms=("first", "second"))
RANKING = st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=8)


class Ranked:
    """Returns passages of a corpus in a given order, and remembers how many it was asked for."""

    def __init__(self, corpus: Corpus, names: list[str], *, steps: int = 1, tokens: int = 0) -> None:
        self.name = "ranked"
        self.backbones = frozenset({f"of {names[0]}"})
        self._passages = {passage.id: passage for passage in corpus}
        self._names = names
        self._took = (steps, tokens)
        self.asked: list[int] = []

    def search(self, query: Query, k: int) -> Retrieval:
        del query
        self.asked.append(k)
        ranked = (self._passages[name].replace_score(-rank) for rank, name in enumerate(self._names[:k]))
        return Retrieval(tuple(ranked), *self._took)


def passages(names: list[str]) -> list[Passage]:
    return [Passage(name, "", name) for name in names]


def test_scores_are_sums_of_reciprocal_ranks() -> None:
    fused = fuse([passages(["a", "b"]), passages(["b", "c"])])
    assert [(p.id, p.score) for p in fused] == [
        ("b", pytest.approx(1 / 62 + 1 / 61)),
        ("a", pytest.approx(1 / 61)),
        ("c", pytest.approx(1 / 62)),
    ]


def test_members_are_asked_for_depth_or_k_passages(corpus: Corpus) -> None:
    member = Ranked(corpus, ["fox", "bee"])
    arm = FusionArm("rrf", [member, member], FusionParams(arms=("a", "a"), depth=5))
    arm.search(Query("?"), 2)
    arm.search(Query("?"), 9)
    assert member.asked == [5, 5, 9, 9]


def test_costs_of_the_members_are_those_of_the_arm(corpus: Corpus) -> None:
    members: list[Arm] = [
        Ranked(corpus, ["fox"], steps=1, tokens=3),
        Ranked(corpus, ["bee"], steps=2, tokens=4),
    ]
    arm = FusionArm("rrf", members, PARAMS)
    found = arm.search(Query("?"), 4)
    assert (found.steps, found.tokens) == (2, 7)
    assert arm.backbones == {"of fox", "of bee"}


@given(st.lists(RANKING, min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_the_order_of_the_members_changes_nothing(rankings: list[list[str]], random: st.DataObject) -> None:
    shuffled = list(rankings)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert fuse(list(map(passages, rankings))) == fuse(list(map(passages, shuffled)))


@given(RANKING, st.integers(1, 4))
def test_members_that_agree_are_followed(ranking: list[str], n_members: int) -> None:
    fused = fuse([passages(ranking)] * n_members)
    assert [passage.id for passage in fused] == ranking


@given(st.lists(RANKING, min_size=1, max_size=4))
def test_every_passage_of_every_member_is_ranked_once(rankings: list[list[str]]) -> None:
    fused = [passage.id for passage in fuse(list(map(passages, rankings)))]
    assert sorted(fused) == sorted({name for ranking in rankings for name in ranking})
