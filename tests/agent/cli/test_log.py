"""The verbs on the log of a service: backup, verify --log, erase, key list."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import yaml
from typer.testing import CliRunner

from armwise.agent.cli.console import console
from armwise.agent.cli.main import app
from armwise.agent.config import AppConfig, load
from armwise.feedback.log import Store, chain, erasures
from armwise.feedback.log import tables as t
from armwise.feedback.registry import Version, keys, usage, versions
from armwise.feedback.training_log import Joiner, take_epoch
from tests.agent.cli.test_cli import said
from tests.agent.fakes import CONFIG
from tests.agent.judged import judged_log
from tests.feedback.conftest import decision

DRAFT = Version(
    *(0, None, "r", "j", {"kind": "uniform", "params": {}}, 3, 5, versions.digest_state(b"state"), 0, 2.0)
)
"""A version that was not published yet."""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    args = {**CONFIG, "home": str(tmp_path / "home")}
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({"applications": [{"args": args}]}))
    return path


@pytest.fixture
def filled(config: Path) -> AppConfig:
    """The configuration, with three turns in its log."""
    (config.parent / "home").mkdir(mode=0o700)
    found = load(config)
    judged_log(found, 3)
    return found


def run(*words: object, code: int = 0) -> str:
    return said(CliRunner().invoke(app, [str(word) for word in words]), code)


# -- backup --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("filled")
def test_a_backup_has_the_log(config: Path, tmp_path: Path) -> None:
    printed = run("log", "backup", tmp_path / "deep" / "[red]copies", "-c", config)
    copy = tmp_path / "deep" / "[red]copies" / "log.db"
    assert f"{copy}: 3 decisions, " in printed
    with closing(sqlite3.connect(copy)) as log:
        assert log.execute("SELECT count(*) FROM decisions").fetchone() == (3,)


# -- verify --log --------------------------------------------------------------------------------


def test_a_log_is_unchanged_until_somebody_changes_it(filled: AppConfig, config: Path) -> None:
    with closing(Store(filled.database_url)) as store:
        Joiner(store, filled.reward, take_epoch(store, "test", 1.0)).advance(0.0)
        versions.publish_beside(store, replace(DRAFT, join=filled.reward.join), b"state")
        head = chain.fold_all(store)
        erasures.erase_decision(store, "judged-0", "k1", time.time())
    printed = run("verify", "--log", "-c", config)
    assert f"The log is unchanged: {head.seq} facts, head {head.chain}." in printed
    assert f"Facts 1 to {head.seq} have the bytes that the learner read" in printed
    assert "Decisions without texts: 1 by erasure " in printed
    assert "Not covered: keys, usage, jobs, and what operators decided." in printed
    assert "No hash of the newest" not in printed
    with closing(Store(filled.database_url)) as store, store.writing() as connection:
        connection.execute(sa.update(t.executions).values(usd=7.0))
    printed = run("verify", "--log", "-c", config, code=1)
    assert (
        f"a fact between positions 1 and {head.seq} was changed, removed or added: version 1 has" in printed
    )
    assert "unchanged" not in printed


@pytest.mark.parametrize(
    ("words", "remedy"), [([], "name a decision or a receipt"), (["d1", "--log"], "leave out d1")]
)
def test_verify_needs_one_thing_to_verify(words: list[str], remedy: str) -> None:
    assert remedy in run("verify", *words, code=2)


# -- erase ---------------------------------------------------------------------------------------


@pytest.fixture
def personal(filled: AppConfig) -> AppConfig:
    """The log has a decision of Ada in each of two projects, and one of Bob."""
    with closing(Store(filled.database_url, clock=lambda: 5000.0)) as store:
        for name, project, user in (("ada", "default", "ada"), ("ours", "ours", "ada"), ("bob",) * 3):
            digest = erasures.user_digest(store, project, user)
            store.append([replace(decision(name), user_digest=digest, episode_id=f"of-{name}")])
    return filled


def list_erased(config: AppConfig) -> Iterator[str]:
    """Yield the personal decisions that have no text any more."""
    with closing(Store(config.database_url)) as store:
        for name in ("ada", "ours", "bob"):
            record = store.record(name)
            assert record is not None
            if record.decision.erased:
                yield name


@pytest.mark.parametrize(
    ("words", "gone"),
    [
        ("--user ada", "ada"),
        ("--user ada --project ours", "ours"),
        ("--episode of-bob", "bob"),
        ("--decision ours", "ours"),
    ],
)
def test_an_erasure_takes_a_user_of_a_project_or_what_an_id_names(
    personal: AppConfig, config: Path, words: str, gone: str
) -> None:
    printed = run("log", "erase", *words.split(), "-c", config)
    assert list(list_erased(personal)) == [gone]
    assert "the texts of 1 decisions" in printed
    assert "remove old ones" in printed


@pytest.mark.parametrize(
    "words", ["", "--user a --episode b", "--user a --decision c", "--user a --episode b --decision c"]
)
def test_an_erasure_needs_one_subject(config: Path, words: str) -> None:
    assert "one of --user, --episode and --decision was expected" in run(
        "log", "erase", *words.split(), "-c", config, code=2
    )


# -- keys ----------------------------------------------------------------------------------------


def test_keys_are_listed_with_limits_states_and_use(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "width", 300)
    now = time.time()
    common: dict[str, Any] = {"scopes": ("decide",)}
    limits = keys.KeyLimits(rpm_limit=60, max_budget=5.0, budget_duration="day")
    (config.parent / "home").mkdir(mode=0o700)
    with closing(Store(load(config).database_url)) as store:
        first, _ = keys.create(store, keys.KeySettings(name="first", limits=limits, **common), now)
        keys.create(store, keys.KeySettings(name="later", expires=now + 86400.0, **common), now)
        keys.create(store, keys.KeySettings(name="past", expires=1.0, **common), now)
        tokens = keys.KeyLimits(tpm_limit=2000, token_budget=30_000, budget_duration="1mo")
        gone, _ = keys.create(store, keys.KeySettings(name="gone", limits=tokens, expires=1.0, **common), now)
        keys.disable(store, gone.public_id, now)
        month, day = (usage.period(now, kind) for kind in (usage.MONTH, usage.DAY))
        meter, earlier = usage.UsageLedger(store), usage.period(now - 40 * 86400.0, usage.MONTH)
        spent = {
            (first.public_id, month): usage.UsageAmount(1200, 34000, 0.5),
            (first.public_id, day): usage.UsageAmount(7, 7, 7.0),
            (first.public_id, earlier): usage.UsageAmount(1, 1, 1.0),
            ("TEAM_KEY", month): usage.UsageAmount(3, 40, 0.0),
        }
        meter.report(spent, [], now)
    rows = CliRunner().invoke(app, ["key", "list", "-c", str(config)]).output.splitlines()
    cells = [[cell.strip() for cell in row.split("│")] for row in rows if "│" in row]
    by_name = {row[2]: row for row in cells}
    used = "1,200 requests, 34,000 tokens, $0.5000"
    assert by_name["first"][-4:-1] == ["60 requests/min, 5 USD/day", "valid", used]
    tomorrow = datetime.fromtimestamp(now + 86400.0, UTC).strftime("until %Y-%m-%d %H:%M UTC")
    assert by_name["later"][-3:-1] == [tomorrow, "0 requests, 0 tokens, $0.0000"]
    assert by_name["past"][-3] == "expired 1970-01-01 00:00 UTC"
    assert by_name["gone"][-4:-2] == ["2,000 tokens/min, 30,000 tokens/1mo", "disabled"]
    assert [row[1:3] for row in cells if row[1] == "TEAM_KEY"] == [["TEAM_KEY", "of the configuration"]]
    assert len(cells) == 5
    assert by_name["of the configuration"][-2] == "3 requests, 40 tokens, $0.0000"
