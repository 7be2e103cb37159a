"""Rebuilding: what is derived from the facts is verified, and learned again."""

import importlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import yaml
from typer.testing import CliRunner

from armwise.agent.cli.main import app
from armwise.agent.config import AppConfig, parse
from armwise.agent.learning.learner import Learner
from armwise.agent.learning.rebuild import RebuildError, VerifyReport, rebuild, verify_states
from armwise.agent.learning.recipe import Recipe
from armwise.agent.learning.restore import restore_policy
from armwise.agent.policies import PolicyError, PolicySpec
from armwise.feedback.errors import LogGapError, RebuiltError, SupersededError
from armwise.feedback.events import Example
from armwise.feedback.log import Store
from armwise.feedback.log import tables as t
from armwise.feedback.registry import Version
from armwise.feedback.registry import versions as registry_versions
from armwise.feedback.reward import RewardRule
from armwise.feedback.training_log import Joiner, lag, read_learned_examples, summary, take_epoch
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


def verified(store: Store, config: AppConfig | None = None, **options: Any) -> VerifyReport:
    return verify_states(store, config or configured(), lambda *_: None, **options)


def rebuilt(store: Store, config: AppConfig | None = None) -> int | None:
    return rebuild(store, config or configured(), lambda *_: None, clock=lambda: NOW + 7)


def all_rows(store: Store) -> dict[str, list[tuple[Any, ...]]]:
    """Return all that there is beside the facts."""
    with store.reading() as connection:
        return {
            table.name: sorted(map(tuple, connection.execute(sa.select(table))), key=str)
            for table in (t.examples, t.progress, t.operations, t.versions)
        }


def told(report: VerifyReport) -> dict[str, str]:
    """Return of each state whether it is equal."""
    return {state.what: "equal" if state.equal else "different" for state in report.states}


def row(seq: int) -> sa.ColumnElement[bool]:
    return t.examples.c.seq == seq


def of(version: int) -> sa.ColumnElement[bool]:
    return t.versions.c.version == version


# -- what is sound ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [EXACT, BAGGED], ids=["resumes", "replays"])
@pytest.mark.slow
def test_what_a_learner_made_of_the_log_is_what_the_log_gives(any_store: Store, spec: PolicySpec) -> None:
    version = live(any_store, a_learner(any_store, spec))
    before = all_rows(any_store)
    report = verified(any_store, configured(spec), every=True)
    assert report.sound
    assert told(report) == {"training log": "equal", **{f"version {n}": "equal" for n in (1, 2, 3, 4)}}
    assert [state.upto for state in report.states] == [TURNS, 5, 10, 15, TURNS]
    assert report.states[-1].digest == version.digest == learned_at_once(range(TURNS), spec)
    assert report.notes == ()
    assert all_rows(any_store) == before
    assert rebuilt(any_store, configured(spec)) is None
    assert without_epochs(any_store) == {name: rows for name, rows in before.items() if name != "operations"}


def without_epochs(store: Store) -> dict[str, list[tuple[Any, ...]]]:
    return {name: rows for name, rows in all_rows(store).items() if name != "operations"}


def test_facts_that_nobody_has_joined_yet_are_no_difference(store: Store) -> None:
    live(store, a_learner(store))
    for number in range(TURNS, TURNS + 3):
        store.append(facts(number))
    assert verified(store).sound


def test_an_empty_log_is_sound(store: Store) -> None:
    assert rebuilt(store) is None
    assert told(verified(store, every=True)) == {"training log": "equal"}


@pytest.mark.slow
def test_versions_of_other_recipes_are_counted_and_looked_at_where_they_are_named(store: Store) -> None:
    live(store, a_learner(store, BAGGED))
    version = live(store, a_learner(store), range(TURNS, TURNS + 5))
    (note,) = verified(store, every=True).notes
    assert note.endswith(f"of other recipes: 4 of {Recipe(BAGGED, RULE).digest[:12]}")
    assert list(told(verified(store, every=True))) == ["training log", f"version {version.version}"]
    named = verified(store, number=2)
    assert list(told(named)) == ["training log", f"version {version.version}", "version 2"]
    assert named.sound
    assert named.notes == ()
    dear = RULE.model_copy(update={"cost_weight": 0.9})
    with pytest.raises(RebuildError, match=r"version 1 is of recipe .*: pass the configuration"):
        verified(store, configured(rule=dear), number=1)
    with pytest.raises(RebuildError, match="there is no version 9; the newest is 5"):
        verified(store, number=9)


# -- a training log that was changed -----------------------------------------------------------------------

X = t.examples
DAMAGES: dict[str, Damage] = {
    "a value was changed": lambda c: c.execute(sa.update(X).where(row(6)).values(metrics={"thumb": 1.0})),
    "the last rows are gone": lambda c: c.execute(sa.delete(X).where(X.c.seq > 17)),
    "it is gone": lambda c: c.execute(sa.delete(X)),
    "its length is said to be another": lambda c: c.execute(
        sa.update(t.progress).values(examples_seq=TURNS - 1)
    ),
    "the join was set back": lambda c: c.execute(sa.update(t.progress).values(log_seq=30, examples_seq=10)),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.slow
def test_a_training_log_that_was_changed_is_found_and_made_anew(any_store: Store, damage: str) -> None:
    learner = a_learner(any_store)
    live(any_store, learner)
    sound = without_epochs(any_store)
    with any_store.writing() as connection:
        DAMAGES[damage](connection)
    damaged = all_rows(any_store)

    found = verified(any_store)
    assert not found.sound
    assert told(found) == {"training log": "different"}
    assert found.notes == ("versions are compared once the training log is rebuilt",)
    assert all_rows(any_store) == damaged, "nothing was changed"

    assert rebuilt(any_store) is None
    assert without_epochs(any_store) == sound
    assert verified(any_store).sound

    any_store.append(facts(TURNS))
    with pytest.raises(RebuiltError, match="epoch 1 ended with a rebuild: restart"):
        learner.step()
    after = a_learner(any_store).step()
    assert after is not None
    assert after.digest == learned_at_once(range(TURNS + 1))


def test_a_log_of_several_batches_is_joined_to_its_end(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    version = live(store, a_learner(store))
    monkeypatch.setattr(module, "Joiner", partial(Joiner, batch=7))
    assert rebuilt(store) is None
    assert verified(store).states[0].upto == version.examples_seq


@pytest.mark.slow
def test_the_summary_of_pages_is_made_anew(store: Store) -> None:
    live(store, a_learner(store))
    summary.write_document(store, {"damaged": 1e9})
    assert verified(store).sound, "it is not part of what is compared"
    rebuilt(store)
    assert summary.read_document(store) is None


@pytest.mark.parametrize("table", [t.decisions, t.executions, t.feedback], ids=lambda table: str(table.name))
def test_a_log_with_a_gap_cannot_be_rebuilt_and_nothing_is_changed(store: Store, table: sa.Table) -> None:
    live(store, a_learner(store))
    with store.writing() as connection:
        gap = connection.scalar(sa.select(table.c.seq).where(table.c.seq > 20).limit(1))
        connection.execute(sa.delete(table).where(table.c.seq == gap))
    before = all_rows(store)
    with pytest.raises(LogGapError, match="the log ends at position 60 but has 59 facts: rows are missing"):
        rebuilt(store)
    assert all_rows(store) == before


@pytest.mark.parametrize("killed", ["Joiner", "draft_version"])
@pytest.mark.parametrize("misled", [False, True])
@pytest.mark.slow
def test_a_rebuild_that_is_killed_can_be_run_again(
    any_store: Store, monkeypatch: pytest.MonkeyPatch, killed: str, *, misled: bool
) -> None:
    live(any_store, a_learner(any_store))
    with any_store.writing() as connection:
        if misled:
            connection.execute(sa.update(X).where(row(6)).values(metrics={"thumb": 1.0}))
    live(any_store, a_learner(any_store, BAGGED), range(TURNS, TURNS + 5))
    facts_before = any_store.counts()["decisions"]

    def kill(*_: object) -> None:
        raise KeyError("killed")

    config = configured(BAGGED)
    with monkeypatch.context() as broken:
        broken.setattr(module, killed, kill)
        with pytest.raises(KeyError, match="killed"):
            rebuilt(any_store, config)
    assert any_store.counts()["decisions"] == facts_before
    assert (rebuilt(any_store, config) is not None) == misled
    assert verified(any_store, config).sound
    any_store.append(facts(TURNS + 5))
    after = a_learner(any_store, BAGGED).step()
    assert after is not None
    assert after.digest == learned_at_once(range(TURNS + 6), BAGGED)


def test_a_learner_goes_on_after_a_killed_rebuild(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    live(store, a_learner(store))
    sound = without_epochs(store)
    with monkeypatch.context() as broken:
        broken.setattr(module, "Joiner", None)
        with pytest.raises(TypeError):
            rebuilt(store)
    assert a_learner(store).step() is None
    assert without_epochs(store) == sound


# -- versions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [b"damaged", b"", None], ids=["changed", "cut short", "missing"])
@pytest.mark.slow
def test_lost_bytes_are_found_and_learned_again(store: Store, state: bytes | None) -> None:
    version = live(store, a_learner(store))
    with store.writing() as connection:
        for number in (2, version.version):
            if state is None:
                connection.execute(sa.update(t.versions).where(of(number)).values(state=None))
            else:
                connection.execute(sa.update(t.versions).where(of(number)).values(state=state))
    kept = [f"version {n}" for n in (2, 4)]
    found = told(verified(store, every=True))
    assert {found[what] for what in kept} == {"equal" if state is None else "different"}
    follower = registry_versions.find(store, rebuilt(store) or 0)
    assert follower is not None
    assert (follower.parent, follower.digest) == (version.version, version.digest)
    assert verified(store, every=True).sound


def test_bytes_that_were_pruned_are_not_missed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("armwise.feedback.registry.versions.KEPT_CHECKPOINTS", 2)
    live(store, a_learner(store))
    assert registry_versions.checkpoint(store, 1) is None
    assert told(verified(store, number=1)) == {
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
    assert told(verified(any_store, config)) == {"training log": "different"}
    number = rebuilt(any_store, config)
    follower = registry_versions.latest(any_store)
    assert follower is not None
    assert follower.version == number
    assert (follower.parent, follower.examples_seq, follower.epoch) == (misled.version, TURNS + 5, 3)
    assert (follower.created_at, follower.applied_seq) == (NOW + 7, any_store.log_seq())
    assert follower.digest == learned_at_once(range(TURNS + 5), BAGGED)
    assert (
        registry_versions.digest_state(registry_versions.checkpoint(any_store, follower.version) or b"")
        == follower.digest
    )
    assert lag.measure_lag(any_store, RULE, follower.examples_seq).facts == 0
    assert verified(any_store, config).sound
    every = told(verified(any_store, config, every=True))
    assert every[f"version {misled.version}"] == "different", "it has decided, and stays"
    assert every[f"version {follower.version}"] == "equal"


def test_a_version_of_another_kernel_that_differs_is_no_fault(store: Store) -> None:
    version = live(store, a_learner(store))
    with store.writing() as connection:
        v = t.versions
        newest = v.c.version == version.version
        connection.execute(sa.update(t.versions).where(of(version.version)).values(state=None))
        connection.execute(sa.update(v).where(newest).values(digest="0" * 64))
    assert not verified(store).sound
    with store.writing() as connection:
        connection.execute(sa.update(v).values(arithmetic="openblas Nehalem; numpy 2.0"))
    report = verified(store)
    assert told(report)[f"version {version.version}"] == "different"
    assert report.sound
    assert "equal digests are promised only for the same ones" in report.notes[-1]


def test_who_starts_to_learn_during_a_rebuild_ends_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    live(store, a_learner(store))

    def overtaken(*taken: Any) -> int:
        epoch = take_epoch(*taken)
        take_epoch(store, "a learner", NOW)
        return epoch

    monkeypatch.setattr(module, "take_epoch", overtaken)
    before = all_rows(store)["examples"]
    with pytest.raises(SupersededError, match="epoch 2 was superseded by epoch 3"):
        rebuilt(store)
    assert all_rows(store)["examples"] == before


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
    with pytest.raises(LogGapError, match="23 examples were learned before, but the whole log has only 20"):
        a_learner(store).step()
    assert told(verified(store)) == {"training log": "equal", f"version {misled.version}": "different"}
    assert rebuilt(store) == misled.version + 1
    assert verified(store).sound
    for number in rest:
        store.append(facts(number)[2:])
    after = a_learner(store).step()
    assert after is not None
    assert after.digest == learned_at_once(range(TURNS + 3))


# -- the policy of a version ---------------------------------------------------------------------------------


def again(store: Store, number: int, rule: RewardRule = RULE) -> bytes:
    version = registry_versions.find(store, number)
    assert version is not None
    return restore_policy(store, version, rule, ARMS).save()


def lose(store: Store, *versions: int) -> None:
    with store.writing() as connection:
        connection.execute(sa.update(t.versions).where(t.versions.c.version.in_(versions)).values(state=None))


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
    real = read_learned_examples

    def noted(*arguments: Any) -> Iterator[Example]:
        for example in real(*arguments):
            seen.append(example.seq)
            yield example

    monkeypatch.setattr("armwise.agent.learning.training.read_learned_examples", noted)
    assert again(store, 3) == expected
    assert seen == list(read)


def test_a_replay_does_not_begin_from_bytes_that_were_changed(store: Store) -> None:
    live(store, a_learner(store))
    expected = registry_versions.checkpoint(store, 3)
    lose(store, 3)
    with store.writing() as connection:
        connection.execute(
            sa.update(t.versions).where(of(2)).values(state=registry_versions.checkpoint(store, 1))
        )
    assert again(store, 3) == expected


def test_a_policy_that_would_be_another_one_is_refused(store: Store) -> None:
    live(store, a_learner(store))
    lose(store, 1, 2, 3)
    with store.writing() as connection:
        connection.execute(sa.update(X).where(row(6)).values(metrics={"thumb": 1.0}))
    with pytest.raises(PolicyError, match=r"version 3 is .* gives another state"):
        again(store, 3)


def test_a_policy_whose_training_log_has_a_gap_is_refused(store: Store) -> None:
    live(store, a_learner(store))
    lose(store, 1, 2, 3)
    with store.writing() as connection:
        connection.execute(sa.delete(X).where(row(6)))
    with pytest.raises(PolicyError, match="cannot be learned again: the training log continues at 7 after 5"):
        again(store, 3)


def test_of_another_reward_a_version_can_be_had_only_while_its_bytes_are_kept(store: Store) -> None:
    live(store, a_learner(store))
    dear = RULE.model_copy(update={"cost_weight": 0.9})
    assert again(store, 3, rule=dear) == registry_versions.checkpoint(store, 3)
    lose(store, 3)
    with pytest.raises(PolicyError, match=r"version 3 is .* another reward"):
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
    result = CliRunner().invoke(app, ["log", "rebuild", "-c", str(file), *options], env={"COLUMNS": "200"})
    return result.exit_code, result.output


@pytest.mark.slow
def test_the_verb_exits_with_1_until_it_has_learned_again(store: Store, file: Path) -> None:
    version = live(store, a_learner(store))
    code, text = said(file, "--verify")
    assert code == 0
    assert version.digest[:12] in text
    assert "facts: 60 of 60" in text
    with store.writing() as connection:
        connection.execute(sa.delete(t.examples).where(row(6)))
        connection.execute(sa.update(t.versions).where(t.versions.c.version == 4).values(digest="0" * 64))
    code, text = said(file, "--verify", "--all")
    assert code == 1
    assert "differs: row 6 of examples is missing" in text
    assert "learn it again, run: armwise log rebuild" in text
    code, text = said(file)
    assert (code, "Version 5 holds what the log gives" in text) == (0, True)
    assert said(file, "--verify")[0] == 0
    assert said(file, "--verify", "--all")[0] == 1
    newest = sa.select(sa.func.max(t.operations.c.seq))
    with store.reading() as connection:
        before = connection.scalar(newest)
    assert said(file, "--version", "77")[0] == 2
    with store.reading() as connection:
        assert connection.scalar(newest) == before, "it was refused before anything was deleted"


# -- joins ---------------------------------------------------------------------------------------------------


def test_another_join_of_the_same_log_is_compared_with_its_own_training_log(store: Store) -> None:
    live(store, a_learner(store))
    other = RULE.model_copy(update={"wait_time": "PT1H"})
    while (position := Joiner(store, other, take_epoch(store, "test", NOW)).advance(NOW)).log_seq < 60:
        pass
    assert position.examples_seq == TURNS
    assert verified(store, configured(rule=other)).sound
    with store.writing() as connection:
        connection.execute(sa.delete(t.examples).where(row(6), X.c.join == other.join))
    assert verified(store).sound
    assert not verified(store, configured(rule=other)).sound
