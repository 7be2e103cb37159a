"""Turns of a period are read page by page: each once, in the order of the log, whatever a page holds."""

from dataclasses import replace

import pytest

from armwise.feedback.log import Store
from armwise.feedback.reward import Metric, RewardRule
from armwise.feedback.training_log import drawn_turns, served_turns
from tests.feedback.conftest import decision

RULE = RewardRule(metrics={"right": Metric()}, cost_weight=0.0)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8])
def test_turns_next_to_each_other_are_read_over_the_ends_of_pages(
    store: Store, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (served_turns, drawn_turns):
        monkeypatch.setattr(module, "BATCH", size)
    made = [replace(decision(f"d-{n}"), decided_at=100.0 + n) for n in range(7)]
    store.append(made)
    assert [one.seq for one in served_turns.between(store, RULE, 100.0, 106.0)] == [1, 2, 3, 4, 5, 6]
    assert [one.decision.id for one in drawn_turns.read(store, RULE)] == [one.id for one in made]
    some = drawn_turns.read(store, RULE, since=102.0, until=105.0)
    assert [one.decision.id for one in some] == ["d-2", "d-3", "d-4"]
