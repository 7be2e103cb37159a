"""Which verbs start a log, which need one, and where a relative path of a configuration leads."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from armwise.agent.access import NewKey
from armwise.agent.cli.main import VERBS, LazyCommand, app
from armwise.agent.config import AppConfig, load
from armwise.feedback.log import Store
from armwise.feedback.registry import keys
from tests.agent.cli.test_cli import ran as run
from tests.agent.fakes import CONFIG
from tests.agent.judged import judged_log

START_A_LOG = {
    "serve": "the service",
    "demo": "its service has a home of its own",
    "key create": "a service that is reached from elsewhere needs a key before its first start",
    "lab enter-labels": "labels come before the first question",
    "lab warm-start": "so do the labels of a warm start",
}
"""Verbs that start a log where there is none, and why."""

READ_NO_LOG = {
    *("init", "models", "doctor"),
    # over HTTP
    *("ask", "wrap", "feedback", "status", "verify", "lab simulate"),
    *(f"policy {verb}" for verb in ("apply", "promote", "rollback", "canary")),
    # files and corpora
    *("ingest", "import"),
    *(f"lab {verb}" for verb in ("synthesize", "label", "train", "evaluate-router", "portfolio")),
}
"""Verbs that work without a log; `doctor` says that there is none yet."""

NEED_A_LOG: dict[str, list[str]] = {
    "audit": [],
    "log backup": ["copies"],
    "log erase": ["--user", "ada"],
    "log export": ["-o", "log.jsonl"],
    "key disable": ["abcdefghijkl"],
    "key list": [],
    "prove": [],
    "log rebuild": ["--verify"],
    "replay": ["--policy", "uniform"],
    "report": [],
    "lab score": ["--from-log", "-o", "scores"],
    "lab threshold": ["none"],
}
"""Verbs that need a log and start none, with the options that make them read it."""


def every_verb() -> Iterator[str]:
    """Yield every verb of the command line, those of a group with its name."""
    for name, verb in VERBS.items():
        command = LazyCommand(name, verb).command
        inner = getattr(command, "commands", {})
        yield from (f"{name} {each}" for each in inner) if inner else (name,)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, which is not that of the configuration."""
    monkeypatch.delenv("ARMWISE_HOME", raising=False)
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "made.jsonl").write_text('{"id": "q1", "question": "Which river?", "gold_ids": ["p1"]}\n')
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A configuration with a relative home and a relative corpus."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "corpus.jsonl").write_text('{"id": "p1", "text": "The Danube meets the sea."}\n')
    args = {**CONFIG, "home": "home", "corpus": {"name": "small", "source": "corpus.jsonl"}}
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({"applications": [{"args": args}]}))
    return path


def files_below(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


# -- which verbs start a log -------------------------------------------------------------------------


def test_every_verb_is_known_to_start_need_or_ignore_a_log() -> None:
    assert sorted([*START_A_LOG, *READ_NO_LOG, *NEED_A_LOG]) == sorted(every_verb())


@pytest.mark.parametrize("verb", NEED_A_LOG)
@pytest.mark.usefixtures("elsewhere")
def test_a_verb_without_its_log_names_it_and_writes_nothing(verb: str, config: Path, tmp_path: Path) -> None:
    before = files_below(tmp_path)
    words = [*verb.split(), *NEED_A_LOG[verb], "-c", config]
    printed = run(*words, code=2)
    assert f"there is no log at {config.parent / 'home' / 'log.db'}" in printed
    assert "start one with `armwise serve`" in printed
    assert files_below(tmp_path) == before


@pytest.mark.usefixtures("elsewhere")
def test_a_dry_run_of_a_warm_start_starts_no_log(config: Path, tmp_path: Path) -> None:
    before = files_below(tmp_path)
    printed = run("lab", "warm-start", "--dry-run", "-c", config, code=2)
    assert f"there is no log at {config.parent / 'home' / 'log.db'}" in printed
    assert files_below(tmp_path) == before


@pytest.mark.usefixtures("elsewhere")
def test_doctor_looks_at_a_missing_log_without_making_it(config: Path, tmp_path: Path) -> None:
    before = files_below(tmp_path)
    printed = run("doctor", "-c", config)
    assert f"the log sqlite:///{config.parent / 'home' / 'log.db'} does not exist yet" in printed
    assert files_below(tmp_path) == before


# -- where relative paths lead -----------------------------------------------------------------------

READ = {
    "audit": (["audit"], "3 decisions"),
    "backup": (["log", "backup", "copies"], "3 decisions"),
    "export": (["log", "export", "-o", "log.jsonl"], "3 decisions written to log.jsonl"),
    "key list": (["key", "list"], "reader"),
    "prove": (["prove"], "None of 3 decisions was drawn"),
    "rebuild": (["log", "rebuild", "--verify"], "training log │ 3 "),
    "replay": (["replay", "--policy", "uniform"], "3 may still get feedback"),
    "report": (["report", "--text", "--since", "1970-01-01"], "3 decisions, 3 with a reward"),
    "lab score": (["lab", "score", "--from-log", "--measure", "thumb", "-o", "scores"], "3 decisions used"),
}
"""Verbs that only read a log of three judged decisions and a key, and what they print of it."""


@pytest.fixture
def logged(config: Path) -> AppConfig:
    """The settings of a configuration whose log has three judged decisions and a key."""
    settings = load(config)
    settings.home_path.mkdir(mode=0o700)
    judged_log(settings, 3)
    with closing(Store(settings.database_url)) as store:
        keys.create(store, NewKey(name="reader").settings(2000.0), 2000.0)
    return settings


@pytest.mark.parametrize(("words", "told"), READ.values(), ids=READ)
@pytest.mark.usefixtures("elsewhere", "logged")
def test_a_verb_elsewhere_reads_the_log_of_its_configuration(
    words: list[str], told: str, config: Path
) -> None:
    result = CliRunner().invoke(app, [*words, "-c", str(config)])
    assert result.exit_code in (0, 1), result.output
    assert told in result.output, result.output


# -- a log that was copied while it was in use ---------------------------------------------------------


@pytest.mark.parametrize("words", [["key", "list"], ["serve", "--prepare-only", "--cold"], ["doctor"]])
@pytest.mark.usefixtures("elsewhere")
def test_a_log_that_was_copied_without_its_wal_is_named_with_the_remedy(
    words: list[str], config: Path, logged: AppConfig
) -> None:
    file = logged.home_path / "log.db"
    with closing(Store(logged.database_url)) as store:
        keys.create(store, NewKey(name="newest").settings(2001.0), 2001.0)
        copy = file.read_bytes()
    file.write_bytes(copy)
    printed = run(*words, "-c", config)
    assert "copied while it was in use, without its -wal file: the newest rows may be missing" in printed
    assert "copy a log with `armwise log backup`" in printed
    assert "copied while" not in run(*words, "-c", config), "it was closed whole"
