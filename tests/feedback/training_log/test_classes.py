"""The class of each decision, as its caller sent it."""

from contextlib import closing
from pathlib import Path

import pytest

from armwise.feedback.log import Store
from armwise.feedback.training_log import draws
from tests.agent.evaluation.logged import World, fill

WORLD = World({"a": 0.4, "b": 0.8}, forced=0.2)


def test_classes_are_those_of_the_explored_decisions_of_a_stretch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draws, "PAGE", 7)
    with closing(Store(f"sqlite:///{tmp_path / 'log.db'}")) as store:
        made = fill(store, WORLD, 40, seed=1)
        every = draws.read_classes(store, "ask", 1, store.log_seq())
        wanted = [("fact", "how", "why")[i % 3] for i, one in enumerate(made) if one.mode == "explore"]
        assert [every[seq] for seq in sorted(every)] == wanted
        first, last = sorted(every)[5], sorted(every)[20]
        some = draws.read_classes(store, "ask", first, last)
        assert some == {seq: name for seq, name in every.items() if first <= seq <= last}
        assert draws.read_classes(store, "tier", 1, store.log_seq()) == {}
