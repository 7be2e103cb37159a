"""What every arm promises; a new arm calls `check_arm` on itself and inherits these tests."""

from armwise.arms.base import Arm, Query, Retrieval
from armwise.arms.corpus import Corpus
from armwise.arms.models.embedding import HashingEmbedder

DIM = 64
"""Of the hashing backbone that the tests of arms use."""

QUESTIONS = (
    "Which river flows through Vienna?",
    "vienna vienna vienna",
    "Who composed the opera about the river?",
    "the of and",
    "!?",
    "",
    "zyzzyva",
)


def ask(text: str, backbones: frozenset[str] = frozenset()) -> Query:
    """Return a query that carries the embeddings of these backbones, all hashed."""
    vector = HashingEmbedder(DIM).encode_queries([text])[0]
    return Query(text, dict.fromkeys(backbones, vector))


def check_arm(arm: Arm, corpus: Corpus) -> None:
    """Hold an arm to the contract of `armwise.arms.base.Arm`."""
    assert isinstance(arm, Arm)
    passages = {passage.id: passage for passage in corpus}
    for question in QUESTIONS:
        query = ask(question, arm.backbones)
        for k in (1, 3, len(corpus), len(corpus) + 7):
            retrieval = arm.search(query, k)
            _check_ranking(retrieval, k)
            assert retrieval == arm.search(query, k), "the same query must give the same answer"
            for passage in retrieval.passages:
                assert passages[passage.id] == passage.replace_score(0.0), (
                    "a passage is returned as it is kept"
                )


def _check_ranking(retrieval: Retrieval, k: int) -> None:
    ranked = [(-passage.score, passage.id) for passage in retrieval.passages]
    assert len(ranked) <= k
    assert ranked == sorted(ranked), "best first, ties broken by id"
    assert len({passage.id for passage in retrieval.passages}) == len(ranked), "ids are unique"
    assert retrieval.steps >= 0
    assert retrieval.tokens >= 0
