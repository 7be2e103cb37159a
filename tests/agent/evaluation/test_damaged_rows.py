"""Rows beyond the limits of their columns, by the model of the tables: every reader goes on past them."""

import math
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from armwise.agent.api.operations.export import Export, ExportWindow
from armwise.agent.config import AppConfig, load
from armwise.agent.console import period
from armwise.agent.evaluation import EvaluationError, EvaluationRequest, audit, evaluate_log
from armwise.agent.learning.learner import Learner
from armwise.agent.learning.recipe import Recipe
from armwise.agent.policies import PolicySpec
from armwise.feedback.events import Feedback, Observation, ObservationSource
from armwise.feedback.log import Store, damage, limits, listing
from armwise.feedback.log import tables as t
from armwise.feedback.log.limits import Limited, Word
from armwise.feedback.registry import usage
from armwise.feedback.sources import LogSource, read_decisions
from armwise.feedback.training_log import (
    find_difference,
    observed,
    read_examples,
    rollups,
    settled,
    take_epoch,
    traffic,
)
from tests.agent.evaluation.logged import BEGIN, RULE, World, add_up, configured, fill
from tests.documents.texts import COLUMNS, Fate
from tests.postgres import Server

WORLD = World({"none": 0.3, "bm25": 0.8, "dense": 0.5}, {"none": 0.1, "bm25": 0.2, "dense": 0.1}, rated=0.7)

N = 40

NOW = BEGIN + 7200.0


def readers(store: Store, config: AppConfig) -> Mapping[str, Callable[[], object]]:
    """What reads rows for a learner, a page, an evaluation or a limit."""
    source = LogSource(store, config.reward)
    request = EvaluationRequest(candidates=("uniform", "fixed:bm25", "served"))
    return {
        "join and roll-ups": lambda: add_up(store),
        "rebuild": lambda: find_difference(store, RULE),
        "sums of a window": lambda: rollups.read(store, 0, int(NOW), 3600).total(),
        "sums by position": lambda: rollups.by_position(store).total(),
        "newest rewards": lambda: rollups.newest_rewards(store, RULE, 100, ANY),
        "newest draws": lambda: rollups.newest_draws(store, 100, ANY),
        "newest seconds": lambda: rollups.newest_seconds(store, 100),
        "exports": lambda: [[*export(store, config).lines(form)] for form in ("jsonl", "dsjson", "feedback")],
        "training log": lambda: [*read_examples(store, RULE.join)],
        "evaluation": lambda: evaluate_log(config, request, source, store, quietly),
        "pages": lambda: listing.decisions(store, RULE, ANY, 100),
        "pages by reward": lambda: listing.decisions(store, RULE, BY_REWARD, 100),
        "a decision": lambda: [store.record(f"d{i}") for i in range(N)],
        "feedback": lambda: [*store.feedback(100)],
        "decisions": lambda: [*read_decisions(store, RULE, 0.0, 1e12)],
        "decisions of an audit": lambda: [*read_decisions(store, RULE, audited=True)],
        "grades": lambda: observed.graded(store, RULE, 100),
        "settled": lambda: settled.read(store, RULE),
        "answers": lambda: traffic.confirmed_since(store, RULE.join, "right", 0.5, 2.0, 0.0),
        "quota": lambda: usage.UsageLedger(store).read(["key"], NOW),
        "spend": lambda: usage.spend(store, NOW),
        "audit": lambda: audit.audit_store(store, config, quietly),
        "report": lambda: period.read_period(store, config, 0.0, NOW, quietly),
    }


def learn(store: Store, config: AppConfig, kind: str = "adaptive") -> None:
    """Let a learner begin anew, and learn all."""
    with store.writing() as connection:
        for table in (t.checkpoints, t.versions):
            connection.execute(sa.delete(table))
    recipe = Recipe(PolicySpec(kind=kind), RULE)
    learner = Learner(store, recipe, list(config.actions), take_epoch(store, "test", NOW), lambda: NOW)
    learner.step()


def export(store: Store, config: AppConfig) -> Export:
    return Export(store, RULE, config.actions, ExportWindow())


def quietly(*_: object) -> None:
    """Report no progress."""


ANY, BY_REWARD = listing.DecisionFilter(), listing.DecisionFilter(least=-10.0)


TABLES = (t.decisions, t.executions, t.observations, t.feedback, t.ticks, t.usage, t.rollups)
"""Those whose numbers callers, language models or clocks make; the others are written by operators."""

NUMBERS = [column for table in TABLES for column in table.c if isinstance(column.type, Limited)]

LARGE = [column for column in NUMBERS if isinstance(column.type, limits.LargeCount)]

TEXTS = (Fate.OVERWRITTEN, Fate.PSEUDONYM)

DOCUMENTS = [column for table in TABLES for column in table.c if isinstance(column.type, sa.JSON)]

EXTREMES = (
    math.inf,
    -math.inf,
    1e308,
    -1e308,
    1e30,
    -1e30,
    1e-300,
    5e-324,
    2.0**63,
    -(2.0**63),
    253402300800.0,
)


def test_every_number_of_a_fact_has_limits() -> None:
    """All but positions and flags: a new column has a type of `limits`, and is tested below with it."""
    numbers = {
        f"{table.name}.{column.name}"
        for table in TABLES
        for column in table.c
        if not column.primary_key
        and not isinstance(column.type, sa.Boolean)
        and isinstance(column.type, sa.Integer | sa.Float)
    }
    assert numbers - {f"{column.table.name}.{column.name}" for column in NUMBERS} == set()
    assert len(NUMBERS) > 50


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> AppConfig:
    folder = tmp_path_factory.mktemp("service")
    (folder / "home").mkdir(mode=0o700)
    return load(configured(folder, WORLD), ["router"]).of("default")


def write(store: Store) -> None:
    """A log of all kinds of rows, and some usage."""
    fill(store, WORLD, N, seed=3)
    store.append(
        [
            Observation("d1", ObservationSource.JUDGE, "none", 0.5, value=0.5, observed_at=BEGIN),
            Observation("d2", ObservationSource.SHADOW, "dense", 0.5, 0.5, 0.5, observed_at=BEGIN),
        ]
    )
    one = usage.UsageAmount(1, 1, 1.0)
    usage.UsageLedger(store).report({("key", "2023-11"): one}, [], NOW)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("log") / "log.db"
    with closing(Store(f"sqlite:///{file}", RULE.join)) as store:
        write(store)
    return file


@contextmanager
def copied(file: Path) -> Iterator[Store]:
    copy = file.with_name("copy.db")
    shutil.copy(file, copy)
    with closing(Store(f"sqlite:///{copy}", RULE.join)) as store:
        yield store
    for each in file.parent.glob("copy.db*"):
        each.unlink()


DERIVED = (t.rollup_positions, t.examples, t.progress)


def damage_rows(store: Store, values: Mapping[sa.Column[Any], object]) -> None:
    """Write values into three rows of each column beside all checks, as an older version may have."""
    with store.writing() as connection:
        for column, value in values.items():
            key = next(iter(column.table.primary_key))
            keys = [*connection.scalars(sa.select(key).order_by(key).limit(3))]
            given = ":value"
            if connection.dialect.name == "postgresql":  # SQLite takes anything
                kind = column.type.compile(dialect=connection.dialect)
                given = f"CAST(:value AS {kind})"
            statement = sa.text(
                f'UPDATE {column.table.name} SET "{column.name}" = {given} WHERE {key.name} = :key'
            )
            connection.execute(statement, [{"value": value, "key": each} for each in keys])
        for derived in DERIVED:
            connection.execute(sa.delete(derived))


def write_again(store: Store) -> None:
    """Append feedback on what has strange rows, as a caller who repeats a request does."""
    with store.reading() as connection:
        ids = [*connection.scalars(sa.select(t.feedback.c.id).order_by(t.feedback.c.seq).limit(3))]
        names = [*connection.scalars(sa.select(t.decisions.c.id).order_by(t.decisions.c.seq).limit(3))]
    store.append([Feedback(f"again-{name}", name, "right", 1.0, NOW) for name in names])
    for number, name in enumerate(ids):
        store.append([Feedback(f"more-{number}-{name}", names[0], "right", 1.0, NOW)])


def read_all(store: Store, config: AppConfig) -> None:
    for name, reader in readers(store, config).items():
        try:
            reader()
        except (audit.NothingToAuditError, period.NothingServedError, EvaluationError):
            pass  # nothing is left, and it says so
        except Exception as error:
            raise AssertionError(f"{name} fails: {type(error).__name__}: {error}") from error


def named(store: Store) -> set[str]:
    rows = damage.newest(store)
    assert all(row.subject and row.column in str(row) for row in rows)
    return {row.column for row in rows}


def name_of(column: sa.Column[Any]) -> str:
    return f"{column.table.name}.{column.name}"


ANY_NUMBER = st.sampled_from(EXTREMES) | st.floats(allow_nan=False)


@settings(max_examples=5, deadline=None, suppress_health_check=[*HealthCheck])
@given(st.dictionaries(st.sampled_from(NUMBERS), ANY_NUMBER, min_size=1))
@example(dict.fromkeys(NUMBERS, math.inf))
@example(dict.fromkeys(NUMBERS, -math.inf))
@example(dict.fromkeys(NUMBERS, 1e308))
@example(dict.fromkeys(NUMBERS, 1e30))
@example(dict.fromkeys(NUMBERS, 1e-300))
@example(dict.fromkeys(NUMBERS, 253402300800.0))
@pytest.mark.slow
def test_every_reader_goes_on_past_numbers_beyond_their_limits_and_they_are_named(
    filled: Path, config: AppConfig, values: dict[sa.Column[Any], float]
) -> None:
    with copied(filled) as store:
        damage_rows(store, values)
        read_all(store, config)
        beyond = {name_of(column) for column, value in values.items() if column.type.within(value) != value}
        facts = ("decisions.", "executions.", "observations.", "feedback.")
        assert named(store) == {name for name in beyond if name.startswith(facts)}


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 1e308, 1e-300])
@pytest.mark.slow
def test_a_server_too_holds_rows_beyond_limits_that_stop_no_reader(
    postgres: Server, config: AppConfig, value: float
) -> None:
    """It takes what its types hold: no float in a column of integers, but NaN and infinity in others."""
    with closing(Store(postgres.fresh(), RULE.join)) as store:
        write(store)
        integers = {column for column in NUMBERS if isinstance(column.type.impl_instance, sa.Integer)}
        numbers = {column: value for column in NUMBERS if column not in integers}
        damage_rows(store, numbers | dict.fromkeys(integers, 2**31 - 1) | dict.fromkeys(LARGE, 2**63 - 1))
        read_all(store, config)


HOSTILE = (
    *("1e400", "-1e400", "1e308", "1e30", "99999999999999999999999", "NaN", "Infinity"),
    *("null", '"7"', r'"\ud800"'),
)
"""What stands in the place of each number of a document; the last one of each text."""

NO_NUMBERS = ("null", '"7"')
"""Those that are no number."""

OF_ANYTHING = {
    *("decisions.arms", "executions.passages", "executions.stages"),
    *("feedback.tags", "feedback.content", "observations.passages"),
}
"""Documents in which null and texts are not beyond limits."""


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.slow
def test_every_reader_goes_on_past_documents_beyond_their_limits_and_they_are_named(
    filled: Path, config: AppConfig, hostile: str
) -> None:
    text = r'(?<=[:\[,])"[^"]*"(?!:)'
    number = r"(?<![\w\".-])-?\d[\d.e+-]*(?![\w\"])"
    place = re.compile(text if "ud800" in hostile else number)
    with copied(filled) as store:
        with store.reading() as connection:
            first = {
                column: connection.scalar(
                    sa.select(sa.cast(column, sa.Text)).order_by(column.table.c.seq).limit(1)
                )
                for column in DOCUMENTS
            }
        changed = {column: place.sub(lambda _: hostile, before or "null") for column, before in first.items()}
        damage_rows(store, changed)
        read_all(store, config)
        for kind in ("adaptive", "linucb", "linear_thompson"):
            learn(store, config, kind)
        beyond = {name_of(column) for column in DOCUMENTS if changed[column] != (first[column] or "null")}
        if hostile in NO_NUMBERS:
            beyond -= OF_ANYTHING
        assert beyond
        assert named(store) == beyond


WORDS = [column for table in TABLES for column in table.c if isinstance(column.type, Word)]

STRANGE = ("", "OK", "no such word")


def test_every_column_of_an_enumeration_has_its_words() -> None:
    assert set(map(name_of, WORDS)) == {
        "decisions.mode",
        "executions.status",
        "feedback.kind",
        "observations.source",
    }


@pytest.mark.parametrize("strange", STRANGE)
@pytest.mark.slow
def test_every_reader_goes_on_past_words_of_no_enumeration_and_they_are_named(
    filled: Path, config: AppConfig, strange: str
) -> None:
    with copied(filled) as store:
        damage_rows(store, dict.fromkeys(WORDS, strange))
        read_all(store, config)
        learn(store, config)
        write_again(store)
        assert named(store) == set(map(name_of, WORDS))
        assert all(repr(strange) in str(row) for row in damage.newest(store))


def test_a_word_of_no_enumeration_teaches_nothing_and_rates_nobody(filled: Path) -> None:
    with copied(filled) as store:
        add_up(store)
        before = rollups.read(store, 0, int(NOW), 3600).total()
        learned = len([*read_examples(store, RULE.join)])
    for column in WORDS:
        with copied(filled) as store:
            with store.writing() as connection:
                connection.execute(sa.text(f"UPDATE {column.table.name} SET {column.name} = 'strange'"))
                for derived in DERIVED:
                    connection.execute(sa.delete(derived))
            add_up(store)
            after = rollups.read(store, 0, int(NOW), 3600).total()
            assert after["decisions"] == before["decisions"]
            if column.table is not t.observations:
                assert after["rewarded"] == 0 < before["rewarded"], column
            if column.table is not t.feedback:
                expected = learned if column.table is t.observations else 0
                assert len([*read_examples(store, RULE.join)]) == expected, column


@pytest.mark.slow
def test_a_server_too_holds_strange_words_and_documents_that_stop_no_reader(
    postgres: Server, config: AppConfig
) -> None:
    with closing(Store(postgres.fresh(), RULE.join)) as store:
        write(store)
        damage_rows(store, dict.fromkeys(WORDS, "strange"))
        read_all(store, config)
        learn(store, config)
        write_again(store)
        assert named(store) == set(map(name_of, WORDS))


@pytest.mark.slow
def test_every_reader_goes_on_past_bytes_that_are_no_text(filled: Path, config: AppConfig) -> None:
    """SQLite stores any bytes as text: half of a surrogate pair is one of them."""
    columns = [
        column
        for table in TABLES
        for column in table.c
        if isinstance(column.type, sa.String) and COLUMNS[name_of(column)].fate in TEXTS
    ]
    assert "decisions.question" in map(name_of, columns)
    with copied(filled) as store:
        with store.writing() as connection:
            for column in columns:
                key = next(iter(column.table.primary_key))
                bytes_and_key = f"CAST(X'41EDA080' AS TEXT) || {key.name}"
                connection.execute(sa.text(f"UPDATE {column.table.name} SET {column.name} = {bytes_and_key}"))
        read_all(store, config)
