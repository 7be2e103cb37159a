"""The contract of every router, as one list of small checks run on the whole catalogue.

A check takes a function that builds a router that is not fitted. Add a kind to `FITTED` in
`tests/agent/lab/routers/test_routers.py`, and it inherits them all.
"""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
from pydantic import create_model

from armwise.agent.lab.routers import contrastive
from armwise.agent.lab.routers.cascade.trees import AnswerTrees, GainTrees
from armwise.agent.lab.routers.ltrr import Neural
from armwise.agent.lab.routers.optimizer import Descent
from armwise.agent.lab.routers.trees import BoostedTrees, PointwiseXGBoost
from armwise.agent.routers import Features, Router, RouterError, RoutingDataset, Stage, catalog, dataset

ARMS = ("none", "bm25", "dense", "graph")
"""The first retrieves nothing: it has no number of retrieval."""

TOPICS = ("opinion", "river", "sonnet", "enzyme")
"""A question that names the topic of an arm is best answered by that arm."""

SEEN = ("overall_sim", "avg_sim", "max_sim", "var_sim", "moran", "cross_sim")
DIM = 8
NOISE = 0.1

Build = Callable[[], Router]


def make_routers_small(patch: pytest.MonkeyPatch) -> None:
    """Give routers few units and large steps, so that short fits to a few questions learn."""
    patch.setattr(Neural, "hidden", (32, 16))
    patch.setattr(Neural, "descent", Descent(learning_rate=0.01, batch_size=16))
    patch.setattr(contrastive, "WIDTH", 64)
    for kind in (BoostedTrees, PointwiseXGBoost):
        patch.setattr(kind, "growth", {**kind.growth, "eta": 0.3})


def grow_few_trees(patch: pytest.MonkeyPatch) -> None:
    """Let a cascade grow a few trees with large steps, so that short fits to a few questions learn."""
    for kind in (AnswerTrees, GainTrees):
        patch.setattr(kind, "growth", {**kind.growth, "max_depth": 5, "eta": 0.3, "min_child_weight": 1.0})
        patch.setattr(kind, "Params", create_model("Few", __base__=kind.Params, rounds=(int, 15)))


def world(n: int, seed: int, *, topics: bool = True) -> RoutingDataset:
    """Return questions on which one arm is worth about 1 and the others about 0.

    Args:
        n: How many.
        seed: Of all that is drawn; the topics lie in the same directions whatever it is.
        topics: Whether the topic of the question tells the best arm: its embedding, its words, its numbers
            and its fit to the sources show it. Otherwise the similarities of what was retrieved do, and the
            topic is noise.
    """
    rng = np.random.default_rng(seed)
    topic, closest = rng.integers(4, size=n), rng.integers(1, 4, size=n)
    embedding = np.eye(4, DIM)[topic] + rng.normal(size=(n, DIM)) * 0.15
    embedding /= np.linalg.norm(embedding, axis=1, keepdims=True)
    near = 0.6 * (np.arange(4) == closest[:, None]) + rng.uniform(0.1, 0.3, size=(n, 4))
    columns = [near - 0.05, near - 0.1, near, 0.2 - 0.2 * near, 0.9 * near, rng.uniform(size=(n, 4))]
    retrieved = np.stack(columns, axis=2)
    answered = np.stack([rng.uniform(size=(n, 4)), rng.uniform(-2.0, 0.0, size=(n, 4))], axis=2)
    retrieved[:, 0] = np.nan
    best = topic if topics else closest
    features = Features(
        ARMS,
        tuple(f"what of the {TOPICS[t]} {rng.integers(100)}" for t in topic),
        ("words", "wh"),
        np.column_stack([3.0 + 2.0 * topic + rng.uniform(size=n), rng.integers(2, size=n).astype(float)]),
        embedding.astype(np.float32),
        dataset.ArmTable(SEEN, retrieved),
        dataset.ArmTable(("agreement", "logprob"), answered),
        0.1 + 0.6 * (np.arange(4) == topic[:, None]),
    )
    return RoutingDataset(features, (np.arange(4) == best[:, None]) + rng.normal(size=(n, 4)) * NOISE)


@lru_cache(maxsize=64)
def taught(build: Build, *, topics: bool = True) -> Router:
    """Return the router fitted to 300 questions, once for all checks: it does not change while asked."""
    return build().fit(world(300, seed=1, topics=topics))


def asked(n: int = 20) -> Features:
    """Return questions that no router was fitted to."""
    return world(max(n, 2), seed=2).features.rows(range(n))


def scores_are_finite_and_one_for_each_arm(build: Build) -> None:
    router = taught(build)
    for n in (1, 20):
        scores = router.scores(asked(n))
        assert scores.shape == (n, len(ARMS))
        assert scores.dtype == np.float64
        assert np.isfinite(scores).all()


def permuting_arms_permutes_scores(build: Build) -> None:
    router, seen = taught(build), asked()
    order = ("graph", "none", "dense", "bm25")
    expected = router.scores(seen)[:, [ARMS.index(name) for name in order]]
    np.testing.assert_allclose(router.scores(seen.select_arms(order)), expected, rtol=1e-6, atol=1e-6)


def permuting_columns_changes_nothing(build: Build) -> None:
    router, seen = taught(build), asked()
    assert seen.retrieved is not None
    assert seen.answered is not None
    permuted = replace(
        seen,
        names=seen.names[::-1],
        question=seen.question[:, ::-1],
        retrieved=dataset.ArmTable(seen.retrieved.names[::-1], seen.retrieved.values[:, :, ::-1]),
        answered=dataset.ArmTable(seen.answered.names[::-1], seen.answered.values[:, :, ::-1]),
    )
    np.testing.assert_allclose(router.scores(permuted), router.scores(seen), rtol=1e-6, atol=1e-6)


def leaving_an_arm_out_leaves_a_choice(build: Build) -> None:
    router, seen = taught(build), asked()
    for left in (("bm25", "dense"), ("none",), ("none", "graph", "bm25")):
        scores = router.scores(seen.select_arms(left))
        assert scores.shape == (len(seen), len(left))
        assert np.isfinite(scores).all()


def leaving_an_arm_out_changes_no_other_score(build: Build) -> None:
    router, seen = taught(build), asked()
    for left in (("bm25", "dense"), ("none",), ("none", "graph", "bm25")):
        expected = router.scores(seen)[:, [ARMS.index(name) for name in left]]
        np.testing.assert_allclose(router.scores(seen.select_arms(left)), expected, rtol=1e-6, atol=1e-6)


def a_question_is_scored_the_same_in_any_company(build: Build) -> None:
    router, seen = taught(build), asked()
    alone = np.vstack([router.scores(seen.rows([row])) for row in range(len(seen))])
    np.testing.assert_allclose(router.scores(seen), alone, rtol=1e-5, atol=1e-6)


def asking_changes_nothing(build: Build) -> None:
    router, seen = taught(build), asked()
    before = router.save()
    np.testing.assert_array_equal(router.scores(seen), router.scores(seen))
    assert router.save() == before


def threads_see_what_one_thread_sees(build: Build) -> None:
    router, seen = taught(build), asked()
    alone = router.scores(seen)
    with ThreadPoolExecutor(4) as pool:
        for scores in pool.map(router.scores, [seen] * 8):
            np.testing.assert_array_equal(scores, alone)


def the_same_labels_give_the_same_bytes(build: Build) -> None:
    assert build().fit(world(300, seed=1)).save() == taught(build).save()


def fitting_again_forgets_what_was_fitted_before(build: Build) -> None:
    again = build().fit(world(60, seed=4, topics=False)).fit(world(300, seed=1))
    assert again.save() == taught(build).save()


def a_loaded_router_is_the_saved_one(build: Build) -> None:
    saved, seen = taught(build), asked()
    loaded = catalog.load_router(saved.save())
    assert type(loaded) is type(saved)
    assert loaded.schema == saved.schema
    assert loaded.save() == saved.save()
    np.testing.assert_array_equal(loaded.scores(seen), saved.scores(seen))


def a_router_that_was_not_fitted_says_so(build: Build) -> None:
    with pytest.raises(RouterError, match="was not fitted"):
        build().scores(asked())
    with pytest.raises(RouterError, match="was not fitted"):
        build().save()


def a_question_that_does_not_fit_is_refused_by_name(build: Build) -> None:
    router, seen = taught(build), asked()
    with pytest.raises(RouterError, match="'dens' is unknown here; did you mean 'dense'"):
        router.scores(replace(seen, arms=("none", "bm25", "dens", "graph")))
    with pytest.raises(RouterError, match="'words' is unknown here"):
        router.scores(replace(seen, names=("letters", "wh")))
    with pytest.raises(RouterError, match=f"embeddings of 3 numbers; the router was fitted on {DIM}"):
        router.scores(replace(seen, embedding=np.ones((len(seen), 3), dtype=np.float32)))


def a_file_that_is_not_its_own_is_refused(build: Build) -> None:
    router = taught(build)
    saved = router.save()
    line, _, arrays = saved.partition(b"\n")
    kind, version = f'"kind": "{router.kind}"'.encode(), b'"format": 1'
    assert kind in line
    assert version in line

    def with_schema(**changed: object) -> bytes:
        header = json.loads(line)
        header["schema"] |= changed
        return json.dumps(header).encode() + b"\n" + arrays

    assert with_schema() == saved
    for told, damaged in (
        ("kind is 'another'", line.replace(kind, b'"kind": "another"') + b"\n" + arrays),
        ("format is 99", line.replace(version, b'"format": 99') + b"\n" + arrays),
        (
            "params is",
            line.replace(b'"params": {', b'"params": {"x": 1, ').replace(b", }", b"}") + b"\n" + arrays,
        ),
        ("blake2b is", saved[:-1] + bytes([saved[-1] ^ 1])),
        ("blake2b is", saved[:-1]),
        ("blake2b is", with_schema(arms=ARMS[::-1])),
        ("blake2b is", with_schema(arms=("more", *ARMS))),
        ("blake2b is", with_schema(names=("wh", "words"))),
        ("blake2b is", with_schema(dim=DIM + 1)),
        ("blake2b is", with_schema(retrieved=SEEN[::-1])),
        ("does not begin a saved router", b"x" + saved),
        ("does not begin a saved router", b""),
    ):
        with pytest.raises(RouterError, match=told):
            build().load(damaged)


def it_looks_no_further_than_its_stage(build: Build) -> None:
    router, seen = taught(build), asked()
    bare = replace(
        seen,
        retrieved=seen.retrieved if router.stage >= Stage.RETRIEVED else None,
        answered=seen.answered if router.stage >= Stage.ANSWERED else None,
    )
    np.testing.assert_array_equal(router.scores(bare), router.scores(seen))
    if router.stage > Stage.QUESTION:
        with pytest.raises(RouterError, match="nothing was retrieved"):
            router.scores(replace(seen, retrieved=None, answered=None))


def a_fit_that_is_refused_leaves_it_as_it_was_or_not_fitted(build: Build) -> None:
    router, labels = build().fit(world(60, seed=1)), world(60, seed=4, topics=False)
    before = router.save()
    if router.stage > Stage.QUESTION:
        bare = replace(labels.features, retrieved=None, answered=None)
        with pytest.raises(RouterError, match="but they stop at question"):
            router.fit(replace(labels, features=bare))
    assert router.save() == before
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(router, "_fit", _refuse)
        with pytest.raises(RouterError, match="these labels are refused"):
            router.fit(labels)
    with pytest.raises(RouterError, match="was not fitted"):
        router.scores(asked())
    assert router.load(before).save() == before


def _refuse(labels: RoutingDataset) -> None:
    raise RouterError(f"these labels are refused: {len(labels)} questions")


def unknown_utilities_are_left_out(build: Build) -> None:
    labels = world(120, seed=5)
    utility = labels.utility.copy()
    utility[np.random.default_rng(6).random(utility.shape) < 0.3] = np.nan
    utility[0] = np.nan
    assert np.isfinite(build().fit(RoutingDataset(labels.features, utility)).scores(asked())).all()


CHECKS = (
    scores_are_finite_and_one_for_each_arm,
    permuting_arms_permutes_scores,
    permuting_columns_changes_nothing,
    leaving_an_arm_out_leaves_a_choice,
    a_question_is_scored_the_same_in_any_company,
    asking_changes_nothing,
    threads_see_what_one_thread_sees,
    the_same_labels_give_the_same_bytes,
    fitting_again_forgets_what_was_fitted_before,
    a_loaded_router_is_the_saved_one,
    a_router_that_was_not_fitted_says_so,
    a_question_that_does_not_fit_is_refused_by_name,
    a_file_that_is_not_its_own_is_refused,
    it_looks_no_further_than_its_stage,
    a_fit_that_is_refused_leaves_it_as_it_was_or_not_fitted,
    unknown_utilities_are_left_out,
)
"""For every router."""


def worth(router: Router, labels: RoutingDataset) -> float:
    """Return the mean utility of the arms that a router asks."""
    best = router.scores(labels.features).argmax(axis=1)
    return float(labels.utility[np.arange(len(labels)), best].mean())


def best_single(labels: RoutingDataset) -> float:
    """Return the mean utility of the best arm asked always."""
    return float(labels.utility.mean(axis=0).max())


def the_question_tells_the_arm(build: Build) -> None:
    held_out: RoutingDataset = world(200, seed=3)
    assert worth(taught(build), held_out) > best_single(held_out) + 0.3


def what_was_retrieved_tells_the_arm(build: Build) -> None:
    held_out: RoutingDataset = world(200, seed=3, topics=False)
    assert worth(taught(build, topics=False), held_out) > best_single(held_out) + 0.3


APART_CHECKS = (leaving_an_arm_out_changes_no_other_score,)
"""For a router that scores each arm by itself, independently of the others in the request."""

LEARNING_CHECKS = (the_question_tells_the_arm,)
"""For a router that learns."""

RETRIEVED_CHECKS = (what_was_retrieved_tells_the_arm,)
"""For a router of stage retrieved or later."""
