"""Learning that is cut short anywhere: each turn is learned once, in order, and by one learner alone."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from armwise.agent.learning import Learner, Recipe, learner
from armwise.feedback.errors import LogUnavailableError, SupersededError
from armwise.feedback.log import Store
from armwise.feedback.log import tables as t
from armwise.feedback.registry import versions
from armwise.feedback.training_log import joiner as joins
from armwise.feedback.training_log import take_epoch
from tests.agent.learning.test_learner import (
    ARMS,
    BAGGED,
    EXACT,
    NOW,
    RULE,
    PolicySpec,
    facts,
    learned_at_once,
)

TURNS = 12


class CutError(Exception):
    """Stands for a process that ends."""


Cut = Callable[..., Any]


def before(real: Cut) -> Cut:
    """End instead of doing it."""
    del real

    def cut(*_: object, **__: object) -> None:
        raise CutError

    return cut


def after(real: Cut) -> Cut:
    """End once it is done, before anybody hears of it."""

    def cut(*arguments: object, **options: object) -> None:
        real(*arguments, **options)
        raise CutError

    return cut


def away_after(real: Cut) -> Cut:
    """Lose the answer to it."""

    def cut(*arguments: object, **options: object) -> None:
        real(*arguments, **options)
        raise LogUnavailableError("the connection is gone")

    return cut


SEAMS: dict[str, tuple[Any, str, Callable[[Cut], Cut]]] = {
    "facts are read": (joins, "read_window", after),
    "examples are written": (joins, "write_position", before),
    "the join is to be committed": (joins, "write_position", after),
    "the join is committed": (joins.Joiner, "_write", after),
    "the answer of that is lost": (joins.Joiner, "_write", away_after),
    "learning begins": (learner, "learn", before),
    "learning ends": (learner, "learn", after),
    "the version is written": (versions, "add", after),
    "the version is published": (versions, "publish", after),
    "its answer is lost": (versions, "publish", away_after),
}


@pytest.fixture
def store(log_url: str) -> Iterator[Store]:
    store = Store(log_url, RULE.join)
    yield store
    store.close()


def a_learner(store: Store, spec: PolicySpec = EXACT) -> Learner:
    epoch = take_epoch(store, "test", NOW)
    return Learner(store, Recipe(spec, RULE), ARMS, epoch, clock=lambda: NOW + 1)


def assert_learned_once(store: Store, spec: PolicySpec = EXACT) -> None:
    """All turns are in the training log once and in order, and what was published is what they teach."""
    with store.reading() as connection:
        x, v = t.examples.c, t.versions.c
        learned = [tuple(row) for row in connection.execute(sa.select(x.seq, x.decision_id).order_by(x.seq))]
        reached = connection.scalars(sa.select(v.examples_seq).order_by(v.version)).all()
    assert learned == [(number + 1, f"d-{number}") for number in range(TURNS)]
    assert list(reached) == sorted(reached)
    version = versions.latest(store)
    assert version is not None
    assert (version.examples_seq, version.digest) == (TURNS, learned_at_once(range(TURNS), spec))
    state = versions.checkpoint(store, version.version)
    assert state is not None
    assert versions.digest_state(state) == version.digest


@pytest.mark.parametrize("spec", [EXACT, BAGGED], ids=["resumes", "replays"])
@pytest.mark.parametrize("seam", SEAMS)
@pytest.mark.slow
def test_a_learner_that_ends_anywhere_is_followed_by_one_that_goes_on(
    store: Store, monkeypatch: pytest.MonkeyPatch, seam: str, spec: PolicySpec
) -> None:
    owner, name, cut = SEAMS[seam]
    learner = a_learner(store, spec)
    for number in range(TURNS):
        store.append(facts(number))
        if number % 4 == 2:
            with monkeypatch.context() as patch:
                patch.setattr(owner, name, cut(getattr(owner, name)))
                with pytest.raises((CutError, LogUnavailableError)):
                    learner.step()
            learner = a_learner(store, spec)
    learner.step()
    assert_learned_once(store, spec)


@pytest.mark.parametrize("seam", ["facts are read", "learning ends"])
def test_a_learner_that_is_overtaken_there_writes_nothing_more(
    store: Store, monkeypatch: pytest.MonkeyPatch, seam: str
) -> None:
    old = a_learner(store)
    for number in range(TURNS):
        store.append(facts(number))
    owner, name, _ = SEAMS[seam]
    real = getattr(owner, name)

    def overtaken(*arguments: object) -> object:
        monkeypatch.undo()
        found = real(*arguments)
        version = a_learner(store).step()
        assert version is not None
        assert version.epoch == 2
        return found

    monkeypatch.setattr(owner, name, overtaken)
    with pytest.raises(SupersededError, match="epoch 1 was superseded by epoch 2"):
        old.step()
    assert store.counts()["versions"] == 1
    assert_learned_once(store)


@pytest.mark.slow
def test_of_learners_at_once_each_is_superseded_by_the_next_and_the_last_one_learns(store: Store) -> None:
    """Three learners, each of which takes over while the one before is at work under traffic."""
    ends: dict[int, BaseException | None] = {}
    done, taken = threading.Event(), threading.Barrier(2)

    def learn(place: int) -> None:
        learner = a_learner(store)
        taken.wait(30)
        try:
            while not done.is_set():
                learner.step()
            learner.step()
        except SupersededError as error:
            ends[place] = error
        else:
            ends[place] = None

    threads = [threading.Thread(target=learn, args=(place,)) for place in range(3)]
    for place, thread in enumerate(threads):
        thread.start()
        taken.wait(30)
        for number in range(place * TURNS // 3, (place + 1) * TURNS // 3):
            store.append(facts(number))
    done.set()
    for thread in threads:
        thread.join(60)
    first, second, last = (str(ends[place]) for place in range(3))
    # the first may be at work until the third is there
    assert first in {f"epoch 1 was superseded by epoch {number} of test" for number in (2, 3)}
    assert (second, last) == ("epoch 2 was superseded by epoch 3 of test", "None")
    with store.reading() as connection:
        epochs = list(connection.scalars(sa.select(t.versions.c.epoch).order_by(t.versions.c.version)))
    assert epochs == sorted(epochs), "none has published once the next one was there"
    assert epochs[-1] == 3
    assert_learned_once(store)
