"""Rebuilding: whatever is damaged beside the facts is found, named, and made again from them."""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import yaml
from typer.testing import CliRunner

from armwise.agent.cli.main import app
from armwise.agent.config import AppConfig, parse
from armwise.agent.learning.learner import Learner, LearnerThread
from armwise.agent.learning.rebuild import RebuildError, RebuildReport, rebuild
from armwise.agent.learning.recipe import Recipe
from armwise.agent.learning.restore import restore_policy
from armwise.agent.policies import PolicyError, PolicySpec
from armwise.feedback.errors import LogGapError, RebuiltError, SupersededError
from armwise.feedback.events import Example, Tick
from armwise.feedback.log import Store
from armwise.feedback.log import tables as t
from armwise.feedback.registry import Version
from armwise.feedback.registry import versions as registry_versions
from armwise.feedback.reward import RewardRule
from armwise.feedback.training_log import Joiner, confirm_epoch, lag, learned_examples, take_epoch
from tests.agent.fakes import CONFIG
from tests.agent.learning.test_learner import ARMS, BAGGED, EXACT, NOW, RULE, facts, learned_at_once

module = importlib.import_module("armwise.agent.learning.rebuild")  # the face names its function

TURNS = 20

Damage = Callable[[sa.Connection], Any]


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("armwise.feedback.training_log.refold.CHUNK", 7)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'log.db'}"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    store = Store(url, RULE.join)
    yield store
    store.close()


@pytest.fixture
def any_store(log_url: str) -> Iterator[Store]:
    """An empty log on each of the two databases."""
    store = Store(log_url, RULE.join)
    yield store
    store.close()


def configured(spec: PolicySpec = EXACT, rule: RewardRule = RULE, **fields: Any) -> AppConfig:
    document = {"policy": spec.model_dump(mode="json"), "reward": rule.model_dump(mode="json"), **fields}
    return parse({**CONFIG, **document})


def a_learner(store: Store, spec: PolicySpec = EXACT, rule: RewardRule = RULE) -> Learner:
    epoch = take_epoch(store, "test", NOW)
    return Learner(store, Recipe(spec, rule), ARMS, epoch, clock=lambda: NOW + 1)


def live(store: Store, learner: Learner, turns: range = range(TURNS)) -> Version:
    """Let turns happen and be learned, five at a time; return the last version."""
    for number in turns:
        store.append(facts(number))
        if number % 5 == 4:
            learner.step()
    version = registry_versions.latest(store)
    assert version is not None
    return version


def rebuild_quietly(store: Store, config: AppConfig | None = None, **options: Any) -> RebuildReport:
    return rebuild(store, config or configured(), lambda *_: None, **options)


def all_rows(store: Store) -> dict[str, list[tuple[Any, ...]]]:
    """Return all that there is beside the facts."""
    with store.reading() as connection:
        return {
            table.name: sorted(map(tuple, connection.execute(sa.select(table))), key=str)
            for table in (t.examples, t.progress, t.epochs, t.versions, t.checkpoints)
        }


def told(report: RebuildReport) -> dict[str, str]:
    """Return of each thing whether it is equal, mended, or neither."""
    return {
        one.what: "equal" if one.equal else "mended" if one.mended else "different" for one in report.compared
    }


def row(seq: int) -> sa.ColumnElement[bool]:
    return t.examples.c.seq == seq


def of(version: int) -> sa.ColumnElement[bool]:
    return t.checkpoints.c.version == version


# -- what is sound ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [EXACT, BAGGED], ids=["resumes", "replays"])
@pytest.mark.slow
def test_what_a_learner_made_of_the_log_is_what_the_log_gives(any_store: Store, spec: PolicySpec) -> None:
    version = live(any_store, a_learner(any_store, spec))
    before = all_rows(any_store)
    report = rebuild_quietly(any_store, configured(spec), every=True, mend=True)
    assert report.sound
    assert told(report) == {"training log": "equal", **{f"version {n}": "equal" for n in (1, 2, 3, 4)}}
    assert [one.upto for one in report.compared] == [TURNS, 5, 10, 15, TURNS]
    assert report.compared[-1].expected == version.digest == learned_at_once(range(TURNS), spec)
    assert report.notes == ()
    assert all_rows(any_store) == before


def test_facts_that_nobody_has_joined_yet_are_no_difference(store: Store) -> None:
    live(store, a_learner(store))
    for number in range(TURNS, TURNS + 3):
        store.append(facts(number))
    assert rebuild_quietly(store).sound


def test_an_empty_log_is_sound(store: Store) -> None:
    assert told(rebuild_quietly(store, every=True)) == {"training log": "equal"}


def test_how_far_it_is_is_told_to_the_end(store: Store) -> None:
    live(store, a_learner(store))
    heard: list[tuple[int, int]] = []
    rebuild(store, configured(), lambda *how_far: heard.append(how_far))
    assert heard[0] == (7, 3 * TURNS)
    assert heard[-1] == (3 * TURNS, 3 * TURNS)
    assert heard == sorted(heard)


@pytest.mark.slow
def test_versions_of_other_recipes_are_counted_and_looked_at_where_they_are_named(store: Store) -> None:
    live(store, a_learner(store, BAGGED))
    version = live(store, a_learner(store), range(TURNS, TURNS + 5))
    (note,) = rebuild_quietly(store, every=True).notes
    assert note.endswith(f"of other recipes: 4 of {Recipe(BAGGED, RULE).digest[:12]}")
    assert list(told(rebuild_quietly(store, every=True))) == ["training log", f"version {version.version}"]
    named = rebuild_quietly(store, number=2)
    assert list(told(named)) == ["training log", f"version {version.version}", "version 2"]
    assert named.sound
    assert named.notes == ()
    dear = RULE.model_copy(update={"cost_weight": 0.9})
    with pytest.raises(RebuildError, match=r"version 1 is of recipe .*: give the configuration that it was"):
        rebuild_quietly(store, configured(rule=dear), number=1)
    with pytest.raises(RebuildError, match="there is no version 9; the newest is 5"):
        rebuild_quietly(store, number=9)


# -- a training log that was changed -----------------------------------------------------------------------

X = t.examples
DAMAGES: dict[str, tuple[Damage, str]] = {
    "a row is gone": (
        lambda c: c.execute(sa.delete(X).where(row(6))),
        "row 6 is missing; expected 'd-5'",
    ),
    "a value was changed": (
        lambda c: c.execute(sa.update(X).where(row(6)).values(metrics={"thumb": 1.0})),
        "row 6 is 'd-5' with {'thumb': 1.0} by fact 18; expected 'd-5' with {'thumb': ",
    ),
    "another fact is said to have joined it": (
        lambda c: c.execute(sa.update(X).where(row(6)).values(joined_by=17)),
        "row 6 is 'd-5' with",
    ),
    "two rows changed places": (
        lambda c: [
            c.execute(sa.update(X).where(X.c.seq == was).values(seq=then))
            for was, then in ((6, 1000), (7, 6), (1000, 7))
        ],
        "row 6 is 'd-6' with",
    ),
    "the rows moved up": (
        lambda c: [
            c.execute(sa.update(X).where(row(seq)).values(seq=seq - 1)) for seq in range(1, TURNS + 1)
        ],
        "row 1 is 'd-1' with",
    ),
    "the last rows are gone": (
        lambda c: c.execute(sa.delete(X).where(X.c.seq > 17)),
        "row 18 is missing; expected 'd-17'",
    ),
    "there is one more": (
        lambda c: c.execute(
            sa.insert(X),
            {"join": RULE.join, "seq": TURNS + 1, "decision_id": "x", "metrics": {}, "joined_by": 60},
        ),
        f"there are 1 rows besides the expected rows 1 to {TURNS}",
    ),
    "it is gone": (lambda c: c.execute(sa.delete(X)), "row 1 is missing; expected 'd-0'"),
    "its length is said to be another": (
        lambda c: c.execute(sa.update(t.progress).values(examples_seq=TURNS - 1)),
        "the join is recorded at Position(log_seq=60, log_at=1000.0, examples_seq=19); expected Position",
    ),
    "its time is said to be another": (
        lambda c: c.execute(sa.update(t.progress).values(log_at=0.0)),
        "the join is recorded at Position(log_seq=60, log_at=0.0, examples_seq=20); expected Position",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.slow
def test_a_training_log_that_was_changed_is_found_named_and_made_anew(any_store: Store, damage: str) -> None:
    learner = a_learner(any_store)
    version = live(any_store, learner)
    sound = all_rows(any_store)
    change, named = DAMAGES[damage]
    with any_store.writing() as connection:
        change(connection)
    damaged = all_rows(any_store)

    found = rebuild_quietly(any_store)
    assert not found.sound
    assert told(found) == {"training log": "different", f"version {version.version}": "equal"}
    assert found.notes[0].startswith(named)
    assert all_rows(any_store) == damaged, "nothing was changed"

    mended = rebuild_quietly(any_store, mend=True)
    assert mended.sound
    assert told(mended)["training log"] == "mended"
    assert "mended under epoch 2: a learner that ran stops" in mended.notes[-1]
    now = all_rows(any_store)
    assert {name: rows for name, rows in now.items() if name != "epochs"} == {
        name: rows for name, rows in sound.items() if name != "epochs"
    }
    assert rebuild_quietly(any_store).sound

    any_store.append(facts(TURNS))
    with pytest.raises(RebuiltError, match="epoch 1 ended with a rebuild: restart"):
        learner.step()
    after = a_learner(any_store).step()
    assert after is not None
    assert after.digest == learned_at_once(range(TURNS + 1))


@pytest.mark.slow
def test_damaged_sums_of_pages_are_added_up_again(store: Store) -> None:
    def sums() -> dict[tuple[Any, ...], list[float]]:
        with store.reading() as connection:
            rows = connection.execute(sa.select(t.rollups)).all()
        return {tuple(row[:4]): [round(value, 9) for value in row[4:]] for row in rows}

    live(store, a_learner(store))
    sound = sums()
    assert sound
    with store.writing() as connection:
        connection.execute(sa.update(t.rollups).values(decisions=7, reward=1e9))
    assert rebuild_quietly(store).sound, "they are not part of what is compared"
    assert sums() != sound
    rebuild_quietly(store, mend=True)
    assert sums() == sound


@pytest.mark.slow
def test_a_join_that_was_set_back_is_cut_there_and_goes_on_by_itself(store: Store) -> None:
    version = live(store, a_learner(store))
    with store.writing() as connection:
        connection.execute(sa.update(t.progress).values(log_seq=30, examples_seq=10))
    found = rebuild_quietly(store)
    assert found.notes[0].startswith("there are 10 rows besides the expected rows 1 to 10")
    mended = rebuild_quietly(store, mend=True)
    assert told(mended) == {"training log": "mended", f"version {version.version}": "different"}
    assert "a version ahead of the join is compared after the next join" in mended.remedy
    assert registry_versions.latest(store) == version, "it is served on"
    live(store, a_learner(store), range(TURNS, TURNS + 5))
    again = rebuild_quietly(store, every=True)
    assert again.sound
    assert again.compared[-1].expected == learned_at_once(range(TURNS + 5))


@pytest.mark.slow
def test_what_is_joined_while_it_is_compared_is_mended_too(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = a_learner(store)
    live(store, learner)
    with store.writing() as connection:
        connection.execute(sa.delete(t.examples).where(row(6)))
    told_others = module._others  # noqa: SLF001 - is called after the comparison, before the repair

    def meanwhile(*arguments: Any) -> str | None:
        live(store, learner, range(TURNS, TURNS + 5))
        with store.writing() as connection:
            connection.execute(sa.update(X).where(row(TURNS + 2)).values(metrics={"thumb": 1.0}))
        return told_others(*arguments)

    monkeypatch.setattr(module, "_others", meanwhile)
    assert rebuild_quietly(store, mend=True).sound
    monkeypatch.undo()
    report = rebuild_quietly(store, every=True)
    assert report.sound
    assert report.compared[0].upto == TURNS + 5


@pytest.mark.parametrize("table", [t.decisions, t.executions, t.feedback], ids=lambda table: str(table.name))
def test_a_log_with_a_gap_cannot_be_rebuilt_and_nothing_is_changed(store: Store, table: sa.Table) -> None:
    live(store, a_learner(store))
    with store.writing() as connection:
        connection.execute(sa.delete(t.examples).where(row(2)))
        gap = connection.scalar(sa.select(table.c.seq).where(table.c.seq > 20).limit(1))
        connection.execute(sa.delete(table).where(table.c.seq == gap))
    before = all_rows(store)
    with pytest.raises(LogGapError, match=rf"{gap}|{gap - 1}"):  # type: ignore[operator]
        rebuild_quietly(store, mend=True)
    assert all_rows(store) == before


# -- versions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [EXACT, BAGGED], ids=["resumes", "replays"])
@pytest.mark.parametrize("state", [b"damaged", b"", None], ids=["changed", "cut short", "missing"])
@pytest.mark.slow
def test_bytes_that_are_lost_are_found_and_put_back(
    store: Store, spec: PolicySpec, state: bytes | None
) -> None:
    version = live(store, a_learner(store, spec))
    sound = all_rows(store)
    with store.writing() as connection:
        for number in (2, version.version):
            if state is None:
                connection.execute(sa.delete(t.checkpoints).where(of(number)))
            else:
                connection.execute(sa.update(t.checkpoints).where(of(number)).values(state=state))
    assert told(rebuild_quietly(store, configured(spec)))["bytes of version 4"] == "different"
    assert "bytes of version 2" in told(rebuild_quietly(store, configured(spec), number=2))
    report = rebuild_quietly(store, configured(spec), every=True, mend=True)
    assert report.sound
    assert {what for what, how in told(report).items() if how == "mended"} == {
        "bytes of version 2",
        "bytes of version 4",
    }
    assert all_rows(store)["checkpoints"] == sound["checkpoints"]
    assert all_rows(store)["versions"] == sound["versions"]


def test_bytes_that_were_pruned_are_not_missed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("armwise.feedback.registry.versions.KEPT_CHECKPOINTS", 2)
    live(store, a_learner(store))
    assert registry_versions.checkpoint(store, 1) is None
    assert told(rebuild_quietly(store, number=1)) == {
        "training log": "equal",
        "version 1": "equal",
        "version 4": "equal",
    }


@pytest.mark.slow
def test_a_version_that_has_learned_something_else_is_followed_by_one_that_has_not(any_store: Store) -> None:
    live(any_store, a_learner(any_store, BAGGED))
    with any_store.writing() as connection:
        connection.execute(sa.update(X).where(row(6)).values(metrics={"thumb": 1.0}))
    misled = live(any_store, a_learner(any_store, BAGGED), range(TURNS, TURNS + 5))
    config = configured(BAGGED)
    assert told(rebuild_quietly(any_store, config)) == {
        "training log": "different",
        f"version {misled.version}": "different",
    }
    report = rebuild_quietly(any_store, config, mend=True, clock=lambda: NOW + 7)
    assert report.sound
    follower = registry_versions.latest(any_store)
    assert follower is not None
    assert (follower.parent, follower.examples_seq, follower.epoch) == (misled.version, TURNS + 5, 3)
    assert (follower.created_at, follower.applied_seq) == (NOW + 7, any_store.log_seq())
    assert follower.digest == learned_at_once(range(TURNS + 5), BAGGED)
    assert (
        registry_versions.digest_state(registry_versions.checkpoint(any_store, follower.version) or b"")
        == follower.digest
    )
    assert f"version {follower.version} has learned what the log gives" in report.notes[-2]
    assert lag.measure_lag(any_store, RULE.join, follower.examples_seq).facts == 0
    every = rebuild_quietly(any_store, config, every=True, mend=True)
    assert told(every)[f"version {misled.version}"] == "different", "it has decided, and stays"
    assert told(every)[f"version {follower.version}"] == "equal"
    assert "versions that served are compared byte for byte" in every.remedy
    assert len(all_rows(any_store)["epochs"]) == 3, "nothing was left to mend"


@pytest.mark.slow
def test_a_repair_that_is_stopped_half_way_is_finished_by_the_next(
    any_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = live(any_store, a_learner(any_store))
    with any_store.writing() as connection:
        connection.execute(sa.delete(t.examples).where(row(6)))
        connection.execute(sa.delete(t.checkpoints).where(of(version.version)))
    damaged = all_rows(any_store)

    def cut(*_: object) -> None:
        raise KeyError("a bug")

    with monkeypatch.context() as broken:
        broken.setattr(registry_versions, "store_checkpoint", cut)
        with pytest.raises(KeyError, match="a bug"):
            rebuild_quietly(any_store, mend=True)
    for name in ("progress", "versions", "checkpoints"):
        assert all_rows(any_store)[name] == damaged[name], "these are written together, or not at all"
    assert rebuild_quietly(any_store, mend=True).sound
    assert told(rebuild_quietly(any_store, every=True)) == {
        "training log": "equal",
        **{f"version {n}": "equal" for n in (1, 2, 3, 4)},
    }


def test_who_starts_to_learn_during_a_repair_ends_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    live(store, a_learner(store))
    with store.writing() as connection:
        connection.execute(sa.delete(t.examples).where(row(6)))

    def overtaken(*taken: Any) -> int:
        epoch = take_epoch(*taken)
        take_epoch(store, "a learner", NOW)
        return epoch

    monkeypatch.setattr(module, "take_epoch", overtaken)
    before = all_rows(store)["examples"]
    with pytest.raises(SupersededError, match="epoch 2 was superseded by epoch 3"):
        rebuild_quietly(store, mend=True)
    assert all_rows(store)["examples"] == before


def test_facts_are_committed_between_the_parts_of_a_repair(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    live(store, a_learner(store))
    with store.writing() as connection:
        connection.execute(sa.delete(t.examples))
    committed: list[int] = []

    def confirmed(connection: sa.Connection, epoch: int) -> None:
        committed.append(store.log_seq())
        confirm_epoch(connection, epoch)

    monkeypatch.setattr("armwise.feedback.training_log.refold.confirm_epoch", confirmed)
    other = Store(str(store.engine.url), RULE.join)
    writing = store.writing

    @contextmanager
    def between() -> Iterator[sa.Connection]:
        other.append([Tick(NOW)])
        with writing() as connection:
            yield connection

    monkeypatch.setattr(store, "writing", between)
    assert rebuild_quietly(store, mend=True).sound
    other.close()
    assert len(set(committed)) == len(committed) == 2 * 3, (
        "of 20 rows 7 are taken out, and put in, in a transaction"
    )


@pytest.mark.slow
def test_a_version_that_is_published_while_the_log_is_folded_is_compared_too(store: Store) -> None:
    learner = a_learner(store)
    live(store, learner)
    for number in range(TURNS, TURNS + 5):
        store.append(facts(number))
    learner._joiner.advance(NOW + 1)  # noqa: SLF001 - joined, and not learned yet
    with store.writing() as connection:
        connection.execute(sa.update(X).where(row(TURNS + 2)).values(metrics={"thumb": -1.0}))
    published: list[Version | None] = []

    def tell(done: int, of_all: int) -> None:
        if done == of_all and not published:
            published.append(learner.step())

    report = rebuild(store, configured(), tell, mend=True)
    assert report.sound
    assert published[0] is not None
    assert told(report)[f"version {published[0].version}"] == "mended"
    follower = registry_versions.latest(store)
    assert follower is not None
    assert (follower.parent, follower.digest) == (published[0].version, learned_at_once(range(TURNS + 5)))
    for number in range(TURNS + 5, TURNS + 10):
        store.append(facts(number))
    after = a_learner(store).step()
    assert after is not None
    assert after.digest == learned_at_once(range(TURNS + 10))


@pytest.mark.slow
def test_a_version_of_more_examples_than_the_log_gives_is_not_gone_on_from(store: Store) -> None:
    learner = a_learner(store)
    live(store, learner)
    rest = range(TURNS, TURNS + 3)
    for number in rest:  # decided, and not judged so far
        store.append(facts(number)[:1])
    Joiner(store, RULE, 1).advance(NOW + 1)
    made_up = [
        {
            "join": RULE.join,
            "seq": n + 1,
            "decision_id": f"d-{n}",
            "metrics": {"thumb": -1.0},
            "joined_by": 63,
        }
        for n in rest
    ]
    with store.writing() as connection:
        connection.execute(sa.insert(X), made_up)
        connection.execute(sa.update(t.progress).values(examples_seq=TURNS + 3))
    for number in rest:
        store.append(facts(number)[1:2])
    misled = a_learner(store).step()
    assert misled is not None
    assert misled.examples_seq == TURNS + 3
    with store.writing() as connection:
        connection.execute(sa.delete(X).where(X.c.seq > TURNS))
        connection.execute(sa.update(t.progress).values(examples_seq=TURNS))
    with pytest.raises(LogGapError, match="23 examples were learned before, and the whole log gives 20"):
        a_learner(store).step()
    report = rebuild_quietly(store, mend=True)
    assert told(report) == {"training log": "equal", f"version {misled.version}": "mended"}
    for number in rest:
        store.append(facts(number)[2:])
    after = a_learner(store).step()
    assert after is not None
    assert after.digest == learned_at_once(range(TURNS + 3))


@pytest.mark.slow
def test_the_thread_of_a_learner_that_ran_fails_so_that_another_one_is_started(store: Store) -> None:
    learner = a_learner(store)
    live(store, learner)
    thread = LearnerThread(lambda _: learner, interval_s=0.001)
    with store.writing() as connection:
        connection.execute(sa.delete(t.examples).where(row(6)))
    rebuild_quietly(store, mend=True)
    thread._thread.join(30)  # noqa: SLF001 - it ends by itself, and nothing public waits for that
    with pytest.raises(RebuiltError, match="restart"):
        thread.check()


# -- the policy of a version ---------------------------------------------------------------------------------


def again(store: Store, number: int, rule: RewardRule = RULE) -> bytes:
    version = registry_versions.find(store, number)
    assert version is not None
    return restore_policy(store, version, rule, ARMS).save()


def lose(store: Store, *versions: int) -> None:
    with store.writing() as connection:
        connection.execute(sa.delete(t.checkpoints).where(t.checkpoints.c.version.in_(versions)))


@pytest.mark.parametrize(
    ("spec", "lost", "read"),
    [
        (EXACT, (), []),
        (EXACT, (3,), range(11, 16)),
        (EXACT, (2, 3), range(6, 16)),
        (EXACT, (1, 2, 3), range(1, 16)),
        (BAGGED, (3,), range(1, 16)),
    ],
    ids=["kept", "from the one before", "from the one before that", "from nothing", "where it never resumes"],
)
def test_the_policy_of_a_version_is_had_again_by_the_shortest_replay(
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    spec: PolicySpec,
    lost: tuple[int, ...],
    read: range | list[int],
) -> None:
    live(store, a_learner(store, spec))
    expected = registry_versions.checkpoint(store, 3)
    lose(store, *lost)
    seen: list[int] = []
    real = learned_examples

    def noted(*arguments: Any) -> Iterator[Example]:
        for example in real(*arguments):
            seen.append(example.seq)
            yield example

    monkeypatch.setattr("armwise.agent.learning.restore.learned_examples", noted)
    assert again(store, 3) == expected
    assert seen == list(read)


def test_a_replay_does_not_begin_from_bytes_that_were_changed(store: Store) -> None:
    live(store, a_learner(store))
    expected = registry_versions.checkpoint(store, 3)
    lose(store, 3)
    with store.writing() as connection:
        connection.execute(
            sa.update(t.checkpoints).where(of(2)).values(state=registry_versions.checkpoint(store, 1))
        )
    assert again(store, 3) == expected


def test_a_policy_that_would_be_another_one_is_refused(store: Store) -> None:
    live(store, a_learner(store))
    lose(store, 1, 2, 3)
    with store.writing() as connection:
        connection.execute(sa.update(X).where(row(6)).values(metrics={"thumb": 1.0}))
    with pytest.raises(
        PolicyError, match="version 3 is missing or damaged, and the log gives another state now"
    ):
        again(store, 3)


def test_a_policy_whose_training_log_has_a_gap_is_refused(store: Store) -> None:
    live(store, a_learner(store))
    lose(store, 1, 2, 3)
    with store.writing() as connection:
        connection.execute(sa.delete(X).where(row(6)))
    with pytest.raises(PolicyError, match="cannot be learned again: the training log goes on at 7 after 5"):
        again(store, 3)


def test_of_another_reward_a_version_can_be_had_only_while_its_bytes_are_kept(store: Store) -> None:
    live(store, a_learner(store))
    dear = RULE.model_copy(update={"cost_weight": 0.9})
    assert again(store, 3, rule=dear) == registry_versions.checkpoint(store, 3)
    lose(store, 3)
    with pytest.raises(
        PolicyError, match="version 3 is missing or damaged, and it was learned by another reward"
    ):
        again(store, 3, rule=dear)


# -- the verb ------------------------------------------------------------------------------------------------


@pytest.fixture
def file(url: str, tmp_path: Path) -> Path:
    """A configuration file of a log that was learned."""
    document = {
        **CONFIG,
        "log_url": url,
        "home": str(tmp_path / "home"),
        "policy": EXACT.model_dump(mode="json"),
        "reward": RULE.model_dump(mode="json"),
    }
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({"applications": [{"args": document}]}))
    return path


def said(file: Path, *options: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["rebuild", "-c", str(file), *options], env={"COLUMNS": "200"})
    return result.exit_code, result.output


@pytest.mark.slow
def test_the_verb_says_what_differs_mends_it_and_exits_with_one_until_it_is(store: Store, file: Path) -> None:
    version = live(store, a_learner(store))
    code, text = said(file, "--verify")
    assert code == 0
    assert version.digest[:12] in text
    assert "facts: 60 of 60" in text
    with store.writing() as connection:
        connection.execute(sa.delete(t.examples).where(row(6)))
    code, text = said(file, "--verify", "--all")
    assert code == 1
    assert "row 6 is missing; expected 'd-5'" in text
    assert "`armwise rebuild`, without --verify" in text
    code, text = said(file)
    assert (code, "no, mended" in text, "mended under epoch 2" in text) == (0, True, True)
    assert said(file, "--verify")[0] == 0
    assert said(file, "--version", "77")[0] == 2


def test_the_verb_refuses_a_log_with_a_gap(store: Store, file: Path) -> None:
    live(store, a_learner(store))
    with store.writing() as connection:
        connection.execute(sa.delete(t.feedback).where(t.feedback.c.seq == 30))
    code, text = said(file)
    assert code == 1
    assert "the log goes on at 31 after 29: rows between are missing" in text


# -- joins ---------------------------------------------------------------------------------------------------


def test_another_join_of_the_same_log_is_compared_with_its_own_training_log(store: Store) -> None:
    live(store, a_learner(store))
    other = RULE.model_copy(update={"wait_time": "PT1H"})
    while (position := Joiner(store, other, take_epoch(store, "test", NOW)).advance(NOW)).log_seq < 60:
        pass
    assert position.examples_seq == TURNS
    assert rebuild_quietly(store, configured(rule=other)).sound
    with store.writing() as connection:
        connection.execute(sa.delete(t.examples).where(row(6), X.c.join == other.join))
    assert rebuild_quietly(store).sound
    assert not rebuild_quietly(store, configured(rule=other)).sound
