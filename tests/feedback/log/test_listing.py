"""Pages of decisions: what each condition lets through, what came of each, and where the next page begins."""

from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pytest

from armwise.feedback.events import LABELS, Cost, Decision, FeedbackKind, Status
from armwise.feedback.log import Store, listing
from armwise.feedback.log.listing import DecisionFilter, ListedDecision, Page
from armwise.feedback.reward import Prices
from armwise.feedback.training_log import Joiner, take_epoch
from tests.feedback.conftest import decision, execution, value
from tests.feedback.training_log.test_summary import RULE, filled, turns
from tests.steps import change

__all__ = ["filled"]  # a fixture

ANY = DecisionFilter()


def page_of(store: Store, wanted: DecisionFilter, limit: int = 9, before: int | None = None) -> Page:
    return listing.decisions(store, RULE, wanted, limit, before)


def pages(store: Store, limit: int, wanted: DecisionFilter = ANY) -> list[list[ListedDecision]]:
    """The decisions of all pages; an empty one is part of them."""
    found: list[list[ListedDecision]] = []
    before: int | None = None
    while before is not None or not found:
        page = page_of(store, wanted, limit, before)
        found.append(list(page.decisions))
        assert (page.looked_through is None) == (page.following is None or len(page.decisions) == limit)
        before = page.following
    return found


def every(store: Store, limit: int, wanted: DecisionFilter = ANY) -> list[list[str]]:
    """Their ids, page by page."""
    return [[one.decision.id for one in page] for page in pages(store, limit, wanted)]


def test_pages_follow_each_other_down_to_the_first_decision(store: Store) -> None:
    for i in range(5):
        store.append([decision(f"d{i}"), execution(f"d{i}")])
    store.append([replace(decision("label"), policy=LABELS)])
    assert every(store, 2) == [["d4", "d3"], ["d2", "d1"], ["d0"]]
    assert every(store, 5) == [["d4", "d3", "d2", "d1", "d0"]], "the first position is on it"
    last = page_of(store, ANY, 2, before=5)
    assert last.following is None, "a full page that ends with it is the last"
    assert page_of(store, ANY, 2, before=999) == page_of(store, ANY, 2)
    assert page_of(store, ANY, 2, before=1) == Page([], None, None)


def test_a_page_goes_on_where_the_last_window_ended(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "WINDOW", 3)
    store.append([decision("rare"), *(decision(f"d{i}") for i in range(6))])
    assert every(store, 9) == [["d5", "d4", "d3"], ["d2", "d1", "d0"], ["rare"]]
    assert page_of(store, ANY, before=999) == page_of(store, ANY), "what is beyond the log is not looked at"
    drawn = replace(decision("other"), drawn="a", probabilities=(0.5, 0.5))
    store.append([drawn])
    assert every(store, 9, DecisionFilter(arm="a")) == [["other"], [], []]


def test_an_empty_log_has_no_page_and_no_span(store: Store) -> None:
    assert page_of(store, ANY) == Page([], None, None)
    assert listing.span(store) is None


def test_the_span_is_that_of_the_first_and_the_last_decision(store: Store) -> None:
    store.append([decision("d1", at=100.0), decision("d2", at=300.0), decision("d3", at=200.0)])
    assert listing.span(store) == (100.0, 200.0)


def test_a_listed_decision_has_no_features_and_says_how_it_ended(store: Store) -> None:
    store.append([decision("d1"), execution("d1", Status.FELL_BACK), decision("d2")])
    second, first = page_of(store, ANY).decisions
    bare = replace(decision("d1").context, features={}, embedding=(), arms={})
    cost = RULE.cost.total(execution("d1").cost)
    assert cost > 0
    assert first == ListedDecision(
        replace(decision("d1"), context=bare),
        1,
        "b",
        Status.FELL_BACK,
        cost,
        None,
        execution("d1").cost,
        (),
        (execution("d1").answer or "")[:240],
    )
    assert (second.models, second.answer) == ((), "")
    assert (second.seq, second.served, second.status) == (3, None, None)
    assert (second.cost, second.raw_cost) == (None, None)


def test_a_listed_decision_has_the_begin_of_its_answer_and_the_models_that_were_asked(store: Store) -> None:
    done = replace(execution("d1"), answer="a" * 239 + "bc", tokens_by_model={"large": (1, 2, 0)})
    store.append([decision("d1"), done])
    (only,) = page_of(store, ANY).decisions
    assert (only.models, only.answer) == (("large",), "a" * 239 + "b")


@pytest.fixture
def varied(store: Store) -> Store:
    """Decisions d0 to d3 that differ in each thing that is asked for."""
    store.append([replace(decision("d0", at=100.0), version=7), execution("d0")])
    store.append([change(decision("d1", at=110.0), candidate=7, share=0.5, drawn="a"), execution("d1")])
    store.append(
        [replace(decision("acme~d2", at=120.0), episode_id="e"), execution("acme~d2", Status.CANCELLED)]
    )
    store.append([decision("d3", at=130.0)])
    store.append(
        [replace(value("d0", at=140.0), key="k1"), replace(value("d3", "thumb", at=140.0), key="k2")]
    )
    store.append([replace(value("acme~d2", at=140.0), decision_id=None, episode_id="e", key="k1")])
    shown = replace(value("d1", "", at=140.0), kind=FeedbackKind.ACTIVATION, value=None, key="k2")
    store.append([shown, replace(execution("d3"), passages=("p 7",))])
    return store


CONDITIONS: list[tuple[dict[str, Any], list[str]]] = [
    ({}, ["d3", "acme~d2", "d1", "d0"]),
    ({"since": 110.0}, ["d3", "acme~d2", "d1"]),
    ({"until": 120.0}, ["d1", "d0"]),
    ({"arm": "a"}, ["d1"]),
    ({"version": 7}, ["d1", "d0"]),
    ({"status": "ok"}, ["d3", "d1", "d0"]),
    ({"status": "cancelled"}, ["acme~d2"]),
    ({"metric": "right"}, ["d0"]),
    ({"metric": "thumb", "key": "k1"}, []),
    ({"key": "k2"}, ["d3"]),
    ({"episode": "e"}, ["acme~d2"]),
    ({"prefix": "acme~"}, ["acme~d2"]),
    ({"prefix": "d%"}, []),
    ({"excluded_id_part": "~"}, ["d3", "d1", "d0"]),
    ({"excluded_id_part": "%"}, ["d3", "acme~d2", "d1", "d0"]),
    ({"excluded_id_part": "_"}, ["d3", "acme~d2", "d1", "d0"]),
    ({"since": 110.0, "status": "ok"}, ["d3", "d1"]),
]


def test_each_condition_lets_through_what_it_names_and_nothing_else(varied: Store) -> None:
    found = [every(varied, 9, DecisionFilter(**wanted)) for wanted, _ in CONDITIONS]
    assert found == [[names] for _, names in CONDITIONS]


def test_what_is_under_way_is_running(store: Store) -> None:
    store.append([decision("d1"), execution("d1"), decision("d2")])
    assert every(store, 9, DecisionFilter(status="running")) == [["d2"]]


MADE = [one for one in turns(np.random.default_rng(3)) if one[0].policy != LABELS]


@pytest.mark.slow
def test_each_page_is_filled_from_as_many_windows_as_it_takes(
    filled: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "WINDOW", 50)
    conditions: list[tuple[DecisionFilter, Any]] = [
        (ANY, lambda _: True),
        (DecisionFilter(arm="b"), lambda one: one[0].drawn == "b"),
        (DecisionFilter(status="llm_timeout"), lambda one: one[1].status == "llm_timeout"),
        (DecisionFilter(metric="right"), lambda one: one[2] is not None),
        (DecisionFilter(key="nobody"), lambda _: False),
        (DecisionFilter(text="100%_"), lambda _: False),
        (DecisionFilter(arm="a", metric="right"), lambda one: one[0].drawn == "a" and one[2] is not None),
    ]
    for wanted, matches in conditions:
        expected = [one[0].id for one in MADE if matches(one)][::-1]
        assert [*chain(*every(filled, 7, wanted))] == expected, wanted


def test_rewards_are_those_of_the_rule_and_can_be_asked_for(filled: Store) -> None:
    listed = [*chain(*pages(filled, 7))]
    made = {
        d.id: RULE.net(f.value, RULE.price(e.cost, e.tokens_by_model))
        for d, e, f in MADE
        if f is not None and f.value is not None and e.status == "ok" and d.mode == "explore"
    }
    rewards = {one.decision.id: one.reward for one in listed if one.decision.id in made}
    assert rewards == made != {}
    low, high = np.quantile([one.reward for one in listed if one.reward is not None], (0.3, 0.7))
    among = every(filled, 7, DecisionFilter(least=float(low), most=float(high)))
    assert [*chain(*among)] == [
        one.decision.id for one in listed if one.reward is not None and low <= one.reward <= high
    ]


def test_a_window_of_time_is_that_of_the_commits(filled: Store) -> None:
    with filled.reading() as connection:
        rows = connection.exec_driver_sql(
            "SELECT id, logged_at FROM decisions WHERE policy != 'labels' ORDER BY seq DESC"
        ).all()
    since, until = sorted({row[1] for row in rows})[10:12]
    found = every(filled, 7, DecisionFilter(logged_since=since, logged_until=until))
    assert [*chain(*found)] == [row[0] for row in rows if since <= row[1] <= until] != []


@pytest.fixture
def joined(store: Store) -> Store:
    """Five decisions, of which the third was committed at a later time of the log."""
    store.append([decision("d1", at=100.0), replace(execution("d1"), passages=("p 7",)), value("d1")])
    store.append(
        [change(decision("d2", at=110.0), candidate=7, share=0.5), execution("d2"), value("d2", number=0.5)]
    )
    store.append(
        [replace(decision("acme~d3", at=120.0), episode_id="e"), execution("acme~d3", Status.ARM_FAILED)]
    )
    store.append([about("d4", "Wer heilt?"), execution("d4", Status.LLM_FAILED)])
    store.append([replace(value("d2", "thumb", at=130.0), key="k1"), about("d5", "x" * 400)])
    Joiner(store, RULE, take_epoch(store, "test", 0.0)).advance(9000.0)
    return store


def about(name: str, question: str) -> Decision:
    made = decision(name, at=130.0)
    return replace(made, context=replace(made.context, question=question))


ALONE: list[tuple[dict[str, Any], list[str]]] = [
    ({"text": "wER HEILT"}, ["d4"]),
    ({"logged_since": 120.0}, ["d5", "d4", "acme~d3"]),
    ({"logged_since": 120.5}, ["d5", "d4"]),
    ({"logged_until": 120.0}, ["acme~d3", "d2", "d1"]),
    ({"logged_until": 119.5}, ["d2", "d1"]),
    ({"logged_since": 110.0, "logged_until": 119.5}, ["d2"]),
    ({"least": 0.4}, ["d2", "d1"]),
    ({"least": 0.41}, ["d1"]),
    ({"most": 0.4}, ["acme~d3", "d2"]),
    ({"least": -0.1, "most": 0.39}, ["acme~d3"]),
    ({"least": 0.4, "arm": "b", "logged_until": 100.0}, ["d1"]),
]


@pytest.mark.parametrize("limit", [9, 1])
def test_times_texts_and_rewards_let_through_what_they_name(joined: Store, limit: int) -> None:
    found = [[*chain(*every(joined, limit, DecisionFilter(**wanted)))] for wanted, _ in ALONE]
    assert found == [names for _, names in ALONE]


def test_a_page_that_is_not_full_says_how_far_it_has_looked(
    joined: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "WINDOW", 6)
    monkeypatch.setattr(listing, "WINDOW_BY_REWARD", 2)
    assert page_of(joined, DecisionFilter(text="no such text")) == Page([], 8, 6)
    assert page_of(joined, DecisionFilter(least=0.0)) == Page([], 12, 2)
    last = page_of(joined, ANY, before=4)
    assert ([one.decision.id for one in last.decisions], last.following) == (["d1"], None)
    since = page_of(joined, DecisionFilter(logged_since=120.0))
    assert (since.following, since.looked_through) == (8, 6)
    since = page_of(joined, DecisionFilter(logged_since=130.0))
    assert (since.following, since.looked_through) == (None, None), "what is below was committed before"


def test_an_episode_is_found_however_far_back_it_is(joined: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "WINDOW", 2)
    assert every(joined, 9, DecisionFilter(episode="e")) == [["acme~d3"]]


def test_the_cost_of_a_decision_is_priced_and_its_reward_that_of_its_example(joined: Store) -> None:
    last, failed, _, _, first = page_of(joined, ANY).decisions
    assert (last.decision.context.question, last.cost, last.reward) == ("x" * 400, None, None)
    assert (failed.status, failed.reward) == (Status.LLM_FAILED, None)
    assert first.cost == RULE.cost.total(execution("d1").cost)
    assert first.reward == pytest.approx(0.9)


def test_the_cost_of_a_decision_is_that_of_its_tokens_today(store: Store) -> None:
    prices = {"cost": Prices(steps=0.0, usd=1.0), "token_prices": {"large": (1.0, 0.0, 1.0)}}
    rule = RULE.model_copy(update=prices)
    for name, tokens in (("d1", {"large": (500, 9, 0)}), ("d2", {})):
        done = replace(execution(name), cost=Cost(usd=3.0), tokens_by_model=tokens)
        store.append([decision(name), done])
    found = listing.decisions(store, rule, ANY, 9, None).decisions
    assert [one.cost for one in found] == [3.0, 0.5]
