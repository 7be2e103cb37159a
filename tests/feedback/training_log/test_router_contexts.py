"""The contexts that a recipe learns from: with the scores of its own router, wherever the log has them."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
import sqlalchemy as sa

from armwise.feedback.events import Cost, Decision, Example, Mode
from armwise.feedback.log import Store, erasures
from armwise.feedback.log import tables as t
from armwise.feedback.reward import Metric, RewardRule
from armwise.feedback.training_log import Joiner, router_contexts, take_epoch
from armwise.feedback.training_log.router_contexts import (
    leave_unscored,
    list_unscored,
    read_decisions,
    store_scores,
    with_router,
)
from tests.feedback.conftest import decision, execution, value
from tests.steps import change

RULE = RewardRule(correction_time="PT0S", metrics={"right": Metric()})


def published(store: Store, *routers: str | None) -> None:
    """Publish a version for each router, numbered from 1."""
    row = {"recipe": "r", "join": "j", "policy": {}, "examples_seq": 0, "applied_seq": 0, "digest": "d"}
    row |= {"logged_seq": 0, "chain": t.NO_FACTS}
    epoch = take_epoch(store, "test", 0.0)
    with store.writing() as connection:
        for router in routers:
            versions = sa.insert(t.versions).values(**row, epoch=epoch, created_at=0.0, router=router)
            connection.execute(versions)


def made(name: str, version: int, scores: Mapping[str, float] | None = None, **fields: object) -> Decision:
    found = replace(decision(name), version=version)
    context = found.context if scores is None else found.context.with_scores(scores)
    return change(found, context=context, **fields)


def scores_of(found: Example | Decision) -> dict[str, float]:
    seen = found.decision.context if isinstance(found, Example) else found.context
    return {arm: features["router"] for arm, features in seen.arms.items() if "router" in features}


def as_examples(decisions: list[Decision]) -> list[Example]:
    return [Example(seq, one, Cost(), {"right": 1.0}) for seq, one in enumerate(decisions, start=1)]


def test_scores_are_those_of_the_recipes_router(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_contexts, "CHUNK", 2)
    published(store, "ours", "theirs", None)
    decisions = [
        made("served", 1, {"a": 0.1, "b": 0.2}),
        made("theirs", 2, {"a": 0.9}),
        made("canary", 2, {"a": 0.9}, candidate=1, share=0.25, candidate_scores={"b": 0.3}),
        made("their canary", 3, candidate=2, share=0.25, candidate_scores={"b": 0.8}),
        made("stored", 3),
    ]
    store.append(decisions)
    store_scores(store, "ours", {"stored": {"a": 0.4}, "served": {"a": 0.7}})
    store_scores(store, "another", {"stored": {"a": 0.6}, "theirs": {"a": 0.6}})
    examples = as_examples(decisions)
    found = list(with_router(store, examples, "ours"))
    assert [scores_of(one) for one in found] == [{"a": 0.1, "b": 0.2}, {}, {"b": 0.3}, {}, {"a": 0.4}]
    assert [one.decision.id for one in found] == [one.id for one in decisions], "in their order"
    other = [scores_of(one) for one in with_router(store, examples, "another")]
    assert other == [{}, {"a": 0.6}, {}, {}, {"a": 0.6}], "each router has scores of its own"
    plain = with_router(store, examples, None)
    assert [scores_of(one) for one in plain] == [{}, {}, {}, {}, {}], "of a recipe without a router"


def test_a_log_without_routers_is_learned_as_it_is(store: Store) -> None:
    published(store, None)
    examples = as_examples([made("d1", 1, {"a": 0.5})])
    assert list(with_router(store, examples, None)) == examples


def test_scores_are_stored_once_and_the_first_ones_stay(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router_contexts, "CHUNK", 2)
    published(store, "ours")
    decisions = [made(f"d{i}", 0) for i in range(5)]
    store.append(decisions)
    store_scores(store, "ours", {"d1": {"a": 0.5}, "d3": None})
    store_scores(store, "ours", {f"d{i}": {"a": i / 10} for i in range(5)})
    found = [scores_of(one) for one in with_router(store, as_examples(decisions), "ours")]
    assert found == [{"a": 0.0}, {"a": 0.5}, {"a": 0.2}, {}, {"a": 0.4}]


def test_what_has_no_scores_is_listed_by_its_age_or_by_its_place_among_the_examples(store: Store) -> None:
    published(store, "ours", "theirs")
    store.append([made("served", 1), made("canary", 2, candidate=1, share=0.5), made("old", 2)])
    store.append([made("their canary", 0, candidate=2, share=0.5), made("erased", 2), made("scored", 2)])
    store.append([made("forced", 2, mode=Mode.FORCED), made("new", 2)])
    for name in ("served", "old", "scored", "new"):
        store.append([execution(name), value(name)])
    erasures.erase_decision(store, "erased", "cli", 200.0)
    store_scores(store, "ours", {"scored": None})
    store_scores(store, "theirs", {"new": {"a": 0.5}})
    assert list_unscored(store, "ours", newest=9) == [
        ("new", "what is new?"),
        ("their canary", "what is their canary?"),
        ("old", "what is old?"),
    ]
    assert [name for name, _ in list_unscored(store, "ours", newest=2)] == ["new", "their canary"]
    Joiner(store, RULE, take_epoch(store, "test", 0.0)).advance(110.0)

    def among(after: int, upto: int, join: str = RULE.join) -> set[str]:
        return {name for name, _ in list_unscored(store, "ours", join=join, after=after, upto=upto)}

    assert among(0, 4) == {"old", "new"}
    assert [among(0, 1), among(1, 2), among(2, 3), among(3, 4)] == [set(), {"old"}, set(), {"new"}]
    assert among(0, 4, "another rule") == set()


def test_what_came_before_is_left_without_scores(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_contexts, "CHUNK", 2)
    published(store, "ours")
    decisions = [made(f"d{i}", 0) for i in range(8)]
    store.append(decisions)
    store_scores(store, "ours", {"d2": {"a": 0.25}})
    leave_unscored(store, "ours", before="d6")
    store_scores(store, "ours", {f"d{i}": {"a": 0.75} for i in range(8)})
    found = [scores_of(one) for one in with_router(store, as_examples(decisions), "ours")]
    assert found == [{}, {}, {"a": 0.25}, {}, {}, {}, {"a": 0.75}, {"a": 0.75}]
    leave_unscored(store, "ours", before="unknown")


def test_decisions_are_returned_in_the_order_of_their_ids(store: Store) -> None:
    store.append([decision("d1"), decision("d2"), decision("d3")])
    assert [one.id for one in read_decisions(store, ["d3", "d1"])] == ["d3", "d1"]
