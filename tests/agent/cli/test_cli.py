"""The `armwise` verbs: what they print, and how they exit. 0 is done, 2 a wrong request, 1 a failure."""

import gc
import importlib
import json
import os
import re
import shlex
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib import metadata
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from rich.console import Console
from typer.testing import CliRunner, Result

from armwise.agent import configuration_file
from armwise.agent.cli import options
from armwise.agent.cli import service as service_verbs
from armwise.agent.cli.console import FAILURE, NOT_WRONG, WRONG_REQUEST, progress, report_errors
from armwise.agent.cli.main import GROUPS, app
from armwise.agent.cli.serve_config import LaunchError
from armwise.agent.cli.served_home import Server, find_servers, mark_served
from armwise.agent.client import ClientError
from armwise.agent.config import load
from armwise.agent.doctor import is_open_to_all
from armwise.arms.base import ArmError
from armwise.feedback.errors import LogGapError, LogUnavailableError, StoreError
from armwise.feedback.events import Feedback
from armwise.feedback.log import Store
from armwise.feedback.registry import keys, promotions
from tests.agent.canned_service import ANY, Canned
from tests.agent.fakes import CONFIG

VERBS = [
    *("init", "serve", "ingest", "ask", "feedback", "status", "verify"),
    *("replay", "import", "key", "lab", "log", "policy"),
]
PASSAGE = {"id": "p1", "title": "Danube", "text": "...", "score": 1.0, "metadata": {}}
COST = {"total": 0.0, "tokens": 0, "retrieval_ms": 0.0, "llm_ms": 0.0, "steps": 0, "usd": 0.0}
RECEIPT = {"feedback_id": "f-1", "decision_id": "d-1", "episode_id": None}


@pytest.fixture(autouse=True)
def _no_address_and_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ARMWISE_URL", "ARMWISE_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Serve configuration on a port that is free, with a home and a corpus of its own."""
    monkeypatch.delenv("ARMWISE_HOME", raising=False)
    corpus = tmp_path / "corpus.jsonl"
    lines = [{"id": f"p{i}", "title": f"River {i}", "text": f"River {i} meets the sea."} for i in range(12)]
    corpus.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    args = {**CONFIG, "home": str(tmp_path / "home"), "corpus": {"name": "small", "source": str(corpus)}}
    document = {"http_options": {"host": "127.0.0.1", "port": port}, "applications": [{"args": args}]}
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def said(result: Result, code: int) -> str:
    """Check the exit code and return what was printed, its lines joined: consoles wrap."""
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return re.sub(r"\s+", " ", result.output)


def ran(*words: object, code: int = 0) -> str:
    """Run a verb, check its exit code and return what was printed, its lines joined."""
    return said(run(*words), code)


@pytest.fixture
def service() -> Iterator[Canned]:
    with closing(Canned()) as canned:
        yield canned


@pytest.fixture
def nowhere() -> str:
    """An address where nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def refusal(message: str, code: str = "invalid_value") -> dict[str, Any]:
    known = {
        "code": code,
        "message": message,
        "type": "invalid_request_error",
        "retryable": code == "overloaded",
    }
    return {"error": known | dict.fromkeys(("param", "request_id", "decision_id", "reasons"))}


HEAVY = (
    *("torch", "river", "scipy", "numpy", "ray", "openai", "fastapi", "sqlalchemy", "sklearn", "faiss"),
    *("vowpalwabbit", "httpx", "pyarrow", "transformers", "matplotlib"),
)


@pytest.mark.parametrize(
    "words",
    [
        *(["--help"], ["--version"], ["lab", "--help"]),
        *([verb, "--help"] for verb in ("status", "ask", "feedback", "verify")),
        *(["policy", verb, "--help"] for verb in ("apply", "promote", "rollback", "canary")),
    ],
    ids=" ".join,
)
@pytest.mark.slow
def test_verbs_of_a_running_service_load_no_heavy_library(words: list[str]) -> None:
    script = (
        f"import sys; sys.argv = ['armwise', *{words}]\n"
        "from armwise.agent.cli.main import main\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n"
        f"    print(end.code, *(name for name in {HEAVY} if name in sys.modules))"
    )
    printed = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    ).stdout
    assert printed.splitlines()[-1].split() == ["0"]


@pytest.mark.slow
def test_a_request_loads_the_http_client_alone() -> None:
    allowed = {"httpx", "numpy"}
    script = (
        "import sys; from armwise.agent.client import Client\n"
        f"print(*(name for name in {HEAVY} if name in sys.modules))"
    )
    printed = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    ).stdout
    assert set(printed.split()) <= allowed


def test_the_version_is_printed() -> None:
    assert said(run("--version"), 0).strip() == f"armwise {metadata.version('armwise')}"


@pytest.mark.parametrize("name", [*WRONG_REQUEST, *FAILURE, *NOT_WRONG])
def test_every_error_that_is_explained_by_name_exists(name: str) -> None:
    module, _, error = name.rpartition(".")
    assert issubclass(getattr(importlib.import_module(module), error), Exception)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValueError("wrong"), 2),
        (LaunchError("wrong"), 2),
        (ArmError("wrong"), 2),
        (StoreError("wrong"), 2),
        (LogUnavailableError("wrong"), 1),
        (LogGapError("wrong"), 1),
        (OSError("wrong"), 1),
        (ClientError("wrong"), 1),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_wrong_request_exits_with_2_and_a_failure_with_1(
    capsys: pytest.CaptureFixture[str], error: Exception, code: int
) -> None:
    with pytest.raises(typer.Exit) as ended, report_errors():
        raise error
    assert ended.value.exit_code == code
    assert capsys.readouterr().err == "wrong\n"


def test_what_an_operator_corrects_stands_beside_the_message(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit), report_errors():
        raise LogUnavailableError("the log is away", "start it")
    assert capsys.readouterr().err == "the log is away; start it\n"


def test_progress_without_a_terminal_is_a_line_at_the_start_the_end_and_every_five_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    with progress() as on_progress:
        for clock[0], what, done, total in (
            *((0.0, "passages", 1, 10), (4.9, "passages", 2, 10), (5.0, "passages", 3001, 10_001)),
            *((5.1, "vectors", 7, None), (5.2, "passages", 10, 10), (9.9, "passages", 11, 12)),
        ):
            on_progress(what, done, total)
    assert capsys.readouterr().out.splitlines() == [
        "passages: 1 of 10",
        "passages: 3,001 of 10,001, about 12 s left",
        "vectors: 7",
        "passages: 10 of 10",
    ]


def test_progress_in_a_terminal_is_a_bar_for_each_piece_of_work(monkeypatch: pytest.MonkeyPatch) -> None:
    file = StringIO()
    terminal = Console(file=file, force_terminal=True, width=100)
    monkeypatch.setattr("armwise.agent.cli.console.console", terminal)
    with progress() as on_progress:
        for what, done, total in (("passages", 1, None), ("vectors", 2, 5), ("passages", 3, 3)):
            on_progress(what, done, total)
    *_, passages, vectors = [line for line in file.getvalue().splitlines() if "0:00:" in line]
    assert re.search(r"passages.*3/3", passages)
    assert re.search(r"vectors.*2/5", vectors)


def test_a_defect_is_not_explained() -> None:
    with pytest.raises(ZeroDivisionError), report_errors():
        _ = 1 / 0


def test_constants_that_a_verb_repeats_are_those_of_the_service() -> None:
    assert (options.CONFIG, options.WRITTEN) == (configuration_file.CONFIG, configuration_file.WRITTEN)
    assert service_verbs.LARGEST_SHARE == promotions.LARGEST_SHARE


GROUPED = [(group, verb) for group in GROUPS for verb in GROUPS[group]]


@pytest.mark.parametrize("words", [*VERBS, *map(" ".join, GROUPED)])
def test_every_verb_explains_itself(words: str) -> None:
    assert f" {words} " in said(run(*words.split(), "--help"), 0).partition("Usage:")[2]


@pytest.mark.parametrize("verb", ["label", "score"])
def test_labels_can_be_made_before_there_is_a_router(config: Path, tmp_path: Path, verb: str) -> None:
    document = yaml.safe_load(config.read_text())
    document["applications"][0]["args"]["router"] = {"path": str(tmp_path / "router")}
    config.write_text(yaml.safe_dump(document))
    none, out = tmp_path / "none.jsonl", tmp_path / "out"
    told = said(run("lab", verb, "--queries", none, "-o", out, "-c", config), 2)
    assert "cannot read questions from" in told


@pytest.mark.parametrize(
    ("verb", "function", "words", "expected"),
    [
        ("synthesize", "make_questions", "-o out", {"output": Path("out")}),
        ("score", "score_arms", "-o out --from-log", {"output": Path("out"), "from_log": True}),
        ("label", "label_questions", "--queries q.jsonl -o out", {"queries": Path("q.jsonl")}),
        (
            "evaluate-router",
            "evaluate_model",
            "model o.jsonl p.jsonl",
            {"model": Path("model"), "outcomes": (Path("o.jsonl"), Path("p.jsonl"))},
        ),
    ],
)
def test_a_verb_of_offline_work_does_it_with_the_configuration_and_its_options(
    config: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    verb: str,
    function: str,
    words: str,
    expected: dict[str, Any],
) -> None:
    done = list[Any]()
    monkeypatch.setattr(f"armwise.agent.lab.verbs.{function}", lambda settings, *_: done.append(settings))
    monkeypatch.setattr("armwise.agent.lab.verbs.open_config", lambda path, **_: load(path))
    Store(load(config).database_url).close()
    result = run("lab", verb, *words.split(), "-c", config)
    assert result.exit_code == 0, result.output
    (settings,) = done
    assert settings.config.home_path == tmp_path / "home"
    assert {name: getattr(settings, name) for name in expected} == expected


@pytest.mark.parametrize(("group", "verb"), GROUPED)
def test_a_verb_of_a_group_without_it_is_named_with_it(group: str, verb: str) -> None:
    assert f"No such command '{verb}'. Run: armwise {group} {verb}" in said(run(verb, "--help"), 2)


# -- serve and ingest -----------------------------------------------------------------------------------


def files(folder: Path) -> dict[Path, int]:
    """When each file was written; a lock is touched by whoever looks."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")
    return {path: path.stat().st_mtime_ns for path in found}


def test_serve_builds_what_is_missing_and_then_finds_it_there(config: Path, tmp_path: Path) -> None:
    said(run("serve", "-c", config, "--prepare-only"), 0)
    home = tmp_path / "home"
    built = files(home)
    assert {path.relative_to(home).parts[0] for path in built} == {"corpora", "indexes", "log.db"}
    said(run("serve", "-c", config, "--prepare-only"), 0)
    after = files(home)
    assert after.pop(home / "log.db") >= built.pop(home / "log.db"), "it was opened and closed"
    assert after == built


@pytest.mark.slow
def test_serve_lists_at_each_start_what_of_a_folder_is_left_out(config: Path, tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "plan.md").write_text("The Danube meets the sea.")
    (folder / "latin.txt").write_bytes(b"fine\ncaf\xe9\n")
    (folder / "broken.csv").write_bytes(b"\xff\n")
    for n in range(19):
        (folder / f"photo{n:02}.png").write_bytes(b"\x89PNG")
    document = yaml.safe_load(config.read_text())
    args = document["applications"][0]["args"]
    args["corpus"]["source"], args["http"] = str(folder), {"connections": 100}  # that few files suffice for
    config.write_text(yaml.safe_dump(document))
    for _ in range(2):
        output = said(run("serve", "-c", config, "--prepare-only"), 0)
        assert re.search("Note: latin.txt:2: .*Windows-1252", output)
        assert "Left out: latin.txt" not in output
        assert "Left out: broken.csv:1: " in output
        assert "Left out: photo00.png and 18 more: is image/png" in output
        named = re.search(r"(\S+left-out\.txt)", output)
        assert named is not None
        listed = Path(named[1]).read_text().splitlines()
        assert len(listed) == 21
        assert "photo18.png: is image/png, which has no text to read" in listed
    assert "corpus 'small' has 2 passages" in (checked := said(run("doctor", "-c", config), 0))
    assert "; 20 files or records" in checked


@pytest.mark.slow
def test_serve_prints_the_problems_that_doctor_finds(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "pgpass"
    secret.touch()
    secret.chmod(0o644)
    monkeypatch.setenv("PGPASSFILE", str(secret))
    printed = said(run("serve", "--prepare-only", "--config", config), 0)
    assert f"problem: other users can read {secret} (mode 644); run `chmod 600 {secret}`" in printed
    assert "note:" not in printed
    found = json.loads(run("doctor", "--json", "-c", config).output)
    assert found["ok"] is False
    assert found["findings"][0]["level"] != "problem"
    assert f"problem: other users can read {secret}" in said(run("doctor", "-c", config), 1)


def test_serve_says_that_a_port_is_in_use_before_it_builds_anything(
    config: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    port = yaml.safe_load(config.read_text())["http_options"]["port"]
    with socket.create_server(("127.0.0.1", port)):
        prepared = said(run("serve", "-c", config, "--prepare-only"), 2)
        served = said(run("serve", "-c", config), 2)
    for output in (prepared, served):
        assert f"port {port} of 127.0.0.1 cannot be used (Address already in use); " in output
        assert f" (process {os.getpid()}) is using it: stop the program that uses it" in output
        assert "--replace" not in output
        assert f"http_options.port in {config}" in output
        assert "--port" not in output, "a configuration has its own port"
    assert capfd.readouterr().err == "", "no other process has begun"
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("applications: [{args: {rewards: {}}}]", "unknown key 'rewards'"),
        ("applications: [{args: {}}", "line 1, column 26: expected ',' or ']'"),
        ("http_options: {port: 1}\nhttp_options: {port: 2}", "the key 'http_options' is there twice"),
    ],
)
def test_serve_says_what_is_wrong_with_a_configuration_before_any_process_begins(
    config: Path, monkeypatch: pytest.MonkeyPatch, text: str, problem: str
) -> None:
    begun = list[object]()
    monkeypatch.setattr("subprocess.Popen", lambda *words, **_: begun.append(words))
    config.write_text(text)
    assert problem in said(run("serve", "-c", config, "--single-process"), 2)
    assert begun == []
    assert gc.isenabled(), "what is imported fast leaves the rest as it was"


def test_only_what_passes_python_by_is_kept_from_the_terminal(tmp_path: Path) -> None:
    code = """
import os, sys
from pathlib import Path
from armwise.agent.cli.console import errors, native_messages_in
with native_messages_in(Path(sys.argv[1])):
    os.write(2, b"native\\n")
    print("plain", file=sys.stderr)
    errors.print("a failure")
print("after", file=sys.stderr)
"""
    file = tmp_path / "native.log"
    done = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == ["plain", "a failure", "after"]
    assert file.read_text() == "native\n"
    assert str(file) in done.stdout


def test_serve_does_not_start_on_the_log_of_another_armwise(config: Path, tmp_path: Path) -> None:
    said(run("serve", "-c", config, "--prepare-only"), 0)
    with sqlite3.connect(tmp_path / "home" / "log.db") as log:
        log.execute("UPDATE log SET schema = 99")
    log.close()
    output = said(run("serve", "-c", config, "--prepare-only"), 2)
    assert "the log has schema 99" in output
    assert "run the version that wrote it" in output


def test_serve_does_not_start_where_a_metric_means_something_else_now(config: Path, tmp_path: Path) -> None:
    said(run("serve", "-c", config, "--prepare-only"), 0)
    store = Store(f"sqlite:///{tmp_path / 'home' / 'log.db'}")
    store.append([Feedback("f-1", "d-1", "thumb", 1.0)])
    store.close()
    document = yaml.safe_load(config.read_text())
    document["applications"][0]["args"]["reward"]["metrics"]["thumb"] = {"range": [0, 5]}
    config.write_text(yaml.safe_dump(document))
    output = said(run("serve", "-c", config, "--prepare-only"), 2)
    assert "'thumb'" in output
    assert "float in [0, 5]" in output


def test_serve_and_the_doctor_name_a_corpus_that_is_not_there(config: Path, tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").unlink()
    words = f"corpus 'small': no corpus at {tmp_path / 'corpus.jsonl'}"
    assert words in said(run("serve", "-c", config, "--prepare-only"), 2)
    assert words in said(run("doctor", "-c", config), 1)


def test_ingest_reads_a_corpus_and_says_how_to_serve_it(config: Path, tmp_path: Path) -> None:
    output = said(run("ingest", tmp_path / "corpus.jsonl", "--name", "rivers", "-c", config), 0)
    assert "Read 12 passages into 'rivers', digest " in output
    assert "corpus: {name: rivers, source:" in output
    assert (tmp_path / "home" / "corpora" / "rivers").is_dir()


def test_ingest_cuts_texts_as_the_configuration_says(config: Path, tmp_path: Path) -> None:
    text = tmp_path / "long.txt"
    text.write_text("word " * 100)
    document = yaml.safe_load(config.read_text())
    chunking = {"words": 40, "overlap": 10}
    document["applications"][0]["args"]["corpus"] = {
        "name": "long",
        "source": str(text),
        "chunking": chunking,
    }
    config.write_text(yaml.safe_dump(document))
    assert "Read 3 passages into 'long'" in said(run("ingest", text, "--name", "long", "-c", config), 0)
    assert "Read 1 passages into 'other'" in said(run("ingest", text, "--name", "other", "-c", config), 0)


def test_ingest_puts_the_corpus_into_the_engine_of_an_arm(config: Path, tmp_path: Path) -> None:
    document = yaml.safe_load(config.read_text())
    arms = document["applications"][0]["args"]["arms"]
    arms["words"] = {"kind": "qdrant", "params": {"path": str(tmp_path / "engine"), "collection": "rivers"}}
    config.write_text(yaml.safe_dump(document))
    output = said(run("ingest", "--into", "words", "-c", config), 0)
    assert "12 passages written, 0 deleted; version " in output
    assert "0 passages written, 0 deleted" in said(run("ingest", "--into", "words", "-c", config), 0)
    assert "did you mean 'words'" in said(run("ingest", "--into", "word", "-c", config), 2)
    other = next(name for name in arms if name != "words")
    assert "has no collection: use one of the kinds" in said(run("ingest", "--into", other, "-c", config), 2)


def test_init_changes_corpus_and_home_of_the_template(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARMWISE_HOME", str(tmp_path / "home"))
    folder = tmp_path / "our manuals: v2"
    folder.mkdir()
    (folder / "a.md").write_text("# Danube\n\nIt meets the sea.\n")
    output = said(run("init", folder, "-o", tmp_path / "ours.yaml"), 0)
    assert "Read 1 passages into 'our-manuals-v2'." in output
    config = Path(__file__).parents[3] / "agent" / "config"
    ours, template = (
        yaml.safe_load(path.read_text()) for path in (tmp_path / "ours.yaml", config / "template.yaml")
    )
    args = ours["applications"][0]["args"]
    assert args.pop("home") == "~/.armwise/our-manuals-v2"
    assert args["corpus"] == {"name": "our-manuals-v2", "source": str(folder)}
    args["corpus"] = {"name": "stdlib", "source": "stdlib"}
    assert ours == template
    assert "exists already" in said(run("init", folder, "-o", tmp_path / "ours.yaml"), 2)
    said(run("init", folder, "-o", tmp_path / "ours.yaml", "--replace"), 0)


def test_ingest_leaves_a_bad_line_out_and_lists_it_or_stops_there(config: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(corpus.read_text() + "{not json\n")
    assert "corpus.jsonl:13: not JSON" in said(
        run("ingest", corpus, "--name", "rivers", "-c", config, "--strict"), 2
    )
    for words in ((), ("--skip-bad",)):
        output = said(run("ingest", corpus, "--name", "rivers", "-c", config, *words), 0)
        assert "12 passages" in output
        assert "Left out: corpus.jsonl:13: not JSON" in output


# -- ask, feedback, status ----------------------------------------------------------------------------


def agent(**more: Any) -> dict[str, Any]:
    return {
        "decision_id": "d-1",
        "episode_id": None,
        "mode": "explore",
        "arm_drawn": "dense",
        "arm_served": "dense",
        "propensity": 0.25,
        "policy_version": 7,
        "pmf": {"dense": 0.25, "bm25": 0.75},
        "cost": COST,
        "reward_deadline": 600.0,
        **more,
    }


def stream(*events: Any) -> bytes:
    frame = {"id": "chatcmpl-d-1", "object": "chat.completion.chunk", "created": 1, "model": "arm/dense"}
    frames = [f"data: {json.dumps(frame | event)}\n\n" for event in events]
    return "".join([*frames, "data: [DONE]\n\n"]).encode()


def word(text: str, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}], **more}


def test_ask_prints_the_answer_its_passages_and_its_cost(service: Canned) -> None:
    cost = {**COST, "total": 1.0, "tokens": 42, "retrieval_ms": 3.4, "llm_ms": 250.0}
    first = word("", agent=agent(passages=[PASSAGE]))
    last = {"choices": [], "agent": agent(cost=cost)}
    service.reply("POST /v1/chat/completions", stream(first, word("The"), word(" Danube."), last))
    service.reply("GET /v1/policy", {"reward": {"metrics": {"correct": {"type": "boolean"}}}})
    output = said(run("ask", "which river?", "--arm", "dense", "--url", service.url), 0)
    assert output.startswith("The Danube. [1] p1 Danube")
    assert f"armwise feedback last correct=true --url {service.url}" in output
    assert "thumb" not in output, "the service has no such metric"
    assert "0.250" in output
    assert "42 tokens" in output
    (asked,) = service.asked
    assert (asked["model"], asked["messages"][0]["content"]) == ("arm/dense", "which river?")


@pytest.mark.parametrize("finish_reason", ["length", "stop"])
def test_ask_says_where_an_answer_is_cut(service: Canned, finish_reason: str) -> None:
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": finish_reason}]}
    last = word("", agent=agent())
    service.reply("POST /v1/chat/completions", stream(word("The Dan", agent=agent()), end, last))
    output = said(run("ask", "?", "--url", service.url), 0)
    assert ("answering.max_tokens" in output) == (finish_reason == "length")


def test_ask_fails_in_the_words_of_the_service(service: Canned) -> None:
    broken = {"error": {"code": "generator_failed", "message": "the model ran out of memory"}}
    service.reply("POST /v1/chat/completions", stream(word("The", agent=agent()), broken))
    assert "generator_failed: the model ran out of memory" in said(run("ask", "?", "--url", service.url), 1)
    service.reply("POST /v1/chat/completions", refusal("arm 'x' is not configured", "unknown_arm"), 400)
    assert "arm 'x' is not configured" in said(run("ask", "?", "--arm", "x", "--url", service.url), 1)


def test_ask_tries_again_where_the_service_is_busy(service: Canned, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            answer = stream(word("The Danube."), {"choices": [], "agent": agent()})
            service.reply("POST /v1/chat/completions", answer)

    monkeypatch.setattr("asyncio.sleep", pause)
    service.reply("POST /v1/chat/completions", refusal("too many requests", "overloaded"), 429)
    assert "The Danube." in said(run("ask", "?", "--url", service.url), 0)
    assert pauses == [0.1, 0.2]


@pytest.mark.parametrize(
    ("item", "code", "told"),
    [
        ({**RECEIPT, "status": "stored", "log_seq": 3}, 1, "Check the id."),
        (refusal("metric 'thumbs' is not declared", "unknown_metric"), 1, "unknown_metric: metric 'thumbs'"),
    ],
    ids=["not known yet", "refused"],
)
def test_feedback_that_is_not_learned_is_told(
    service: Canned, item: dict[str, Any], code: int, told: str
) -> None:
    service.reply("POST /v1/feedback", {"items": [item]}, 202)
    service.reply(ANY, refusal("there is no decision 'abc'", "decision_not_found"), 404)
    assert told in said(run("feedback", "abc", "thumb=1", "--url", service.url), code)


def test_feedback_is_sent_and_its_position_told(service: Canned) -> None:
    rows = [{**RECEIPT, "status": "stored", "log_seq": 3}, {**RECEIPT, "status": "duplicate", "log_seq": 2}]
    service.reply("POST /v1/feedback", {"items": rows}, 202)
    service.reply(ANY, refusal("no scope", "forbidden"), 403)
    output = said(run("feedback", "d-1", "thumb=0.5", "right=TRUE", "--url", service.url), 0)
    assert (
        output.strip()
        == "Saved, position 3 of the log. Saved before, and counted once, position 2 of the log."
    )
    assert [body for body in service.asked if body] == [
        {
            "items": [
                {"decision_id": "d-1", "metric_name": "thumb", "value": 0.5},
                {"decision_id": "d-1", "metric_name": "right", "value": True},
            ]
        }
    ]


NOW = {
    "arm_drawn": "bm25",
    "before": {"bm25": 0.5, "dense": 0.5},
    "now": {"bm25": 0.5, "dense": 0.5},
    "learned": False,
    "closes_at": 4e9,
}


def test_feedback_waits_until_it_is_learned_and_tells_what_it_changed(
    service: Canned, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.reply("POST /v1/feedback", ACCEPTED, 202)
    service.reply("GET /v1/decisions/d-1/now", {**NOW, "closes_at": time.time() + 4.9})
    service.reply("GET /v1/decisions/d-1", {"feedback": []})
    later = {**NOW, "learned": True, "now": {"bm25": 0.585}}
    looks: list[float] = []

    def pause(seconds: float) -> None:
        looks.append(seconds)
        service.reply("GET /v1/decisions/d-1/now", later)

    monkeypatch.setattr("armwise.agent.cli.service.time.sleep", pause)
    output = said(run("feedback", "d-1", "thumb=1", "--url", service.url), 0)
    assert "It counts in 5 s, unless you change it until then." in output
    assert "bm25 now gets 58 % of questions like this one. When you asked, it got 50 %." in output
    assert len(looks) == 1


@pytest.mark.parametrize(("counts", "told"), [(True, "bm25 still gets 50 %"), (False, "does not count")])
def test_a_second_rating_says_whether_it_counts(service: Canned, counts: bool, told: str) -> None:
    service.reply("POST /v1/feedback", ACCEPTED, 202)
    service.reply("GET /v1/decisions/d-1/now", {**NOW, "learned": True})
    items = [
        {"feedback_id": "earlier", "counts": True},
        {"feedback_id": RECEIPT["feedback_id"], "counts": counts},
    ]
    service.reply("GET /v1/decisions/d-1", {"feedback": items})
    assert told in said(run("feedback", "d-1", "thumb=1", "--url", service.url), 0)


def test_feedback_that_is_learned_later_tells_when(service: Canned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("armwise.agent.cli.service.LEARN_S", 0.0)
    service.reply("POST /v1/feedback", ACCEPTED, 202)
    service.reply("GET /v1/decisions/d-1/now", NOW)
    output = said(run("feedback", "d-1", "thumb=1", "--url", service.url), 0)
    assert "the policy learns from it by 2096-10-02" in output


def test_feedback_on_an_arm_that_was_named_says_that_nothing_is_learned(service: Canned) -> None:
    service.reply("POST /v1/feedback", ACCEPTED, 202)
    service.reply("GET /v1/decisions/d-1/now", refusal("named", "not_drawn"), 409)
    assert "it does not learn from this rating" in said(
        run("feedback", "d-1", "thumb=1", "--url", service.url), 0
    )


ACCEPTED = {"items": [{**RECEIPT, "status": "stored", "log_seq": 3}]}


def test_the_last_answer_is_rated_by_that_name_also_if_it_broke_off(service: Canned) -> None:
    service.reply("POST /v1/feedback", ACCEPTED, 202)
    service.reply(ANY, refusal("no scope", "forbidden"), 403)
    broken = {"error": {"code": "generator_failed", "message": "the model ran out of memory"}}
    for number, last in enumerate(({"choices": []}, broken)):
        first = word("$(touch planted)\narmwise feedback d-0 thumb=1", agent=agent(decision_id=f"d-{number}"))
        service.reply("POST /v1/chat/completions", stream(first, last))
        run("ask", "?", "--url", service.url)
        said(run("feedback", "last", "thumb=1", "--url", service.url), 0)
        assert service.asked[-1]["items"][0]["decision_id"] == f"d-{number}"
    other = said(run("feedback", "last", "thumb=1", "--url", "http://127.0.0.1:1"), 2)
    assert f"your last answer came from {service.url}" in other
    service.reply("POST /v1/chat/completions", refusal("arm 'x' is not configured", "unknown_arm"), 400)
    said(run("ask", "?", "--arm", "x", "--url", service.url), 1)
    said(run("feedback", "last", "thumb=1", "--url", service.url), 0)
    assert service.asked[-1]["items"][0]["decision_id"] == "d-1", "a refused question has no answer"


def test_without_an_answer_none_is_rated_as_the_last_one(
    service: Canned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert "you have asked nothing yet" in said(run("feedback", "last", "thumb=1", "--url", service.url), 2)
    assert service.asked == []


def test_the_last_answer_is_remembered_for_its_user_alone_and_an_unwritable_home_stops_nothing(
    service: Canned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.reply("POST /v1/chat/completions", stream(word("42", agent=agent()), {"choices": []}))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    said(run("ask", "?", "--url", service.url), 0)
    (file,) = (tmp_path / "state" / "armwise").iterdir()
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    said(run("ask", "?", "--url", service.url), 0)


SERVING: dict[str, Any] = {"version": 7, "pinned": False, "chosen": None, "since": None, "reason": None}
AT: dict[str, Any] = {"since": 1700000000.5, "reason": "labels"}
FAILED = {
    "work": "warm_start",
    "what": "warm start",
    "why": "run 1: no node started",
    "remedy": "start it again",
    "attempts": 4,
    "next_attempt_at": None,
}


@pytest.mark.parametrize(
    ("policy", "ready", "shown"),
    [
        ({}, {"building": "embedding: 3 of 9"}, "embedding: 3 of 9"),
        ({}, {"failed": [FAILED]}, r"run 1: no node started .*4 times.*: start it again"),
        ({}, {"failed": [{**FAILED, "attempts": 1, "next_attempt_at": 4e9}]}, "2096-10-02 07:06:40 UTC"),
        (
            {"serving": {**AT, "version": 5, "pinned": True, "chosen": 5}},
            {},
            "version 5 since 2023-11-14",
        ),
        ({"promotion": {**AT, "version": 6, "forced": True, "evaluation": 12}}, {}, "evaluation 12"),
        (
            {"canaries": [{**AT, "version": 8, "share": 0.1, "automatic": False, "deciding": True}]},
            {},
            r"version 8 \w+ 10%",
        ),
        ({}, {"warm_starts": [], "next": {"at": 0.0, "trigger": "first"}}, "first run begins"),
    ],
    ids=["builds", "given up", "tries again", "pinned", "promoted", "canary", "first run"],
)
@pytest.mark.slow
def test_status_shows_the_policy_and_what_is_not_well(
    service: Canned, policy: dict[str, Any], ready: dict[str, Any], shown: str
) -> None:
    plain = {
        "kind": "vowpal",
        "params": {},
        "floor": 0.01,
        "version": 7,
        "digest": "abc",
        "damaged": 0,
        "examples_seq": 30,
        "applied_seq": 40,
        "log_seq": 41,
        "newest": {"version": 7},
        "serving": SERVING,
        "promotion": None,
        "canaries": [],
    }
    arms = [{"name": "bm25", "kind": "bm25", "params": {"k1": 1.5}, "enabled": True}]
    service.reply("GET /v1/arms", {"arms": arms})
    service.reply("GET /v1/policy", plain)
    service.reply("GET /ready", {"status": "ready", "version": 7, "building": None})
    service.reply("GET /v1/warm-starts?limit=1", {"warm_starts": [], "next": None})
    healthy = said(run("status", "--url", service.url), 0)
    assert "vowpal" in healthy
    assert '{"k1": 1.5}' in healthy
    assert not re.search(shown, healthy)
    service.reply("GET /v1/policy", plain | policy)
    service.reply("GET /ready", {"status": "ready", "version": 7, "building": None, **ready})
    service.reply("GET /v1/warm-starts?limit=1", {"warm_starts": [], "next": None, **ready})
    assert re.search(shown, said(run("status", "--url", service.url), 0))


def test_status_names_what_fails_although_the_log_is_away(service: Canned) -> None:
    service.reply("GET /ready", {"status": "ready", "version": 7, "building": None, "failed": [FAILED]})
    service.reply("GET /v1/policy", refusal("the server is gone", "log_unavailable"), 503)
    output = said(run("status", "--url", service.url), 1)
    assert "run 1: no node started" in output
    assert "log_unavailable: the server is gone" in output


@pytest.mark.parametrize("verb", ["promote", "rollback"])
def test_a_version_is_chosen_with_a_reason_and_what_is_in_force_is_told(service: Canned, verb: str) -> None:
    held = {"version": 5, "pinned": True, "chosen": 5, "since": 1700000000.5, "reason": "somebody else's"}
    told = {"serving": held, "newest": {"version": 9}, "canaries": []}
    service.reply(f"POST /v1/policies/7/{verb}", told)
    output = said(run("policy", verb, 7, "--reason", "better", "--url", service.url), 0)
    assert output.strip() == (
        "version 5 since 2023-11-14 22:13:20 UTC, until you promote another (somebody else's); "
        "the newest is 9"
    )
    more = {"force": False} if verb == "promote" else {}
    assert service.asked == [{"reason": "better", **more}]
    assert "--reason" in said(run("policy", verb, 7, "--url", service.url), 2)
    service.reply(f"POST /v1/policies/7/{verb}", refusal("there is no version 7", "version_not_found"), 404)
    output = said(run("policy", verb, 7, "--reason", "better", "--url", service.url), 1)
    path = f"{service.url}/v1/policies/7/{verb}"
    assert output.strip() == f"POST {path} gave 404, version_not_found: there is no version 7"


def test_a_promotion_may_be_forced(service: Canned) -> None:
    service.reply("POST /v1/policies/7/promote", refusal("held by the gate", "promotion_gate_failed"), 409)
    output = said(run("policy", "promote", 7, "--reason", "better", "--url", service.url), 1)
    assert output.strip().endswith("gave 409, promotion_gate_failed: held by the gate")
    service.reply("POST /v1/policies/7/promote", {"serving": SERVING, "newest": None, "canaries": []})
    output = said(run("policy", "promote", 7, "--reason", "better", "--force", "--url", service.url), 0)
    assert output.strip() == "version 7; newer versions replace it automatically"
    assert [one["force"] for one in service.asked] == [False, True]


def test_a_canary_is_told_beside_the_version_that_decides(service: Canned) -> None:
    beside = {"version": 9, "share": 0.25, "since": 1700000000.5, "reason": "labels"}
    beside |= {"automatic": False, "deciding": True}
    told = {"serving": SERVING, "newest": {"version": 7}, "canaries": [beside]}
    service.reply("POST /v1/policies/9/canary", told)
    command = ("policy", "canary", 9, "--reason", "labels", "--url", service.url)
    assert said(run(*command, "--share", "0.25"), 0).strip() == (
        "version 7; newer versions replace it automatically "
        "version 9 gets 25% of all requests since 2023-11-14 22:13:20 UTC (labels)"
    )
    assert service.asked == [{"reason": "labels", "share": 0.25}]
    assert "Input should be less than or equal to 0.5" in said(run(*command, "--share", "0.6"), 2)
    service.reply("POST /v1/policies/9/canary", told | {"canaries": []})
    assert (
        said(run(*command, "--share", "0"), 0).strip() == "version 7; newer versions replace it automatically"
    )


def test_verify_shows_both_distributions_and_fails_where_they_differ(service: Canned) -> None:
    found = {
        "decision_id": "d-1",
        "policy_version": 7,
        "mode": "explore",
        "verified": True,
        "elsewhere": False,
        "logged": {"bm25": 0.25, "none": 0.75},
        "recomputed": {"bm25": 0.25, "none": 0.75},
        "draw": {"u": 0.5, "arm": "none", "agrees": True},
        "why": [],
    }
    service.reply("GET /v1/decisions/d-1/verify", found)
    output = said(run("verify", "d-1", "--url", service.url), 0)
    assert "verified: arm none" in output
    shadow = {"logged": {"bm25": 0.125}, "recomputed": {"bm25": 0.125}}
    made_there = {"elsewhere": True, "logged": {}, "recomputed": {}, "shadow": shadow}
    service.reply("GET /v1/decisions/d-1/verify", found | made_there)
    output = said(run("verify", "d-1", "--url", service.url), 0)
    assert "another system drew none, the shadow is as logged" in output
    recomputed = {"bm25": 0.5, "dense": 0.5}
    other = {"verified": False, "recomputed": recomputed, "why": ["a probability differs by 0.25"]}
    service.reply("GET /v1/decisions/d-1/verify", found | other)
    result = run("verify", "d-1", "--url", service.url)
    assert "a probability differs by 0.25" in said(result, 1)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_verify_asks_the_service_of_a_configuration(
    service: Canned, config: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setenv("ARMWISE_URL", "http://127.0.0.1:9")
    document = yaml.safe_load(config.read_text())
    document["http_options"] = {"host": host, "port": int(service.url.rpartition(":")[2])}
    config.write_text(yaml.safe_dump(document))
    service.reply("GET /v1/decisions/d-1/verify", refusal("of that service", "not_drawn"), 409)
    assert "not_drawn: of that service" in said(run("verify", "d-1", "-c", config), 1)
    assert f"{config}x: no such file" in said(run("verify", "d-1", "-c", f"{config}x"), 2)


def test_the_address_may_stand_in_the_environment(service: Canned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARMWISE_URL", service.url)
    service.reply("GET /v1/policy", refusal("no version yet", "not_ready"), 503)
    assert "not_ready: no version yet" in said(run("status"), 1)


TOKEN = "Bearer s3cret"


def needs_a_key(service: Canned) -> None:
    """Let the service refuse whatever it is asked."""
    for request in (
        *("POST /v1/chat/completions", "POST /v1/feedback", "GET /v1/policy", "GET /v1/arms"),
        *("POST /v1/policies/1/promote", "GET /v1/decisions/d-1/verify"),
    ):
        service.reply(request, refusal("a key is needed", "invalid_api_key"), 401)


@pytest.mark.parametrize(
    "verb",
    [
        *(["ask", "?"], ["feedback", "d-1", "thumb=1"], ["status"], ["lab", "simulate", "--metric", "em"]),
        *(["policy", "promote", "1", "--reason", "better"], ["verify", "d-1"]),
    ],
)
@pytest.mark.parametrize("by_environment", [False, True])
def test_the_key_is_sent_with_every_verb(
    service: Canned,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    verb: list[str],
    by_environment: bool,
) -> None:
    needs_a_key(service)
    if "simulate" in verb:
        questions = tmp_path / "questions.jsonl"
        questions.write_text('{"id": "q1", "question": "?", "answers": ["a"], "gold_ids": []}\n')
        verb = [*verb, str(questions), "-o", str(tmp_path / "out")]
    if by_environment:
        monkeypatch.setenv("ARMWISE_API_KEY", "s3cret")
    given = [] if by_environment else ["--key", "s3cret"]
    assert "a key is needed" in said(run(*verb, *given, "--url", service.url), 1)
    assert set(service.shown) == {TOKEN}


@pytest.fixture
def began(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How a service began, which ends at once."""
    begun = list[str]()
    monkeypatch.setattr("armwise.agent.cli.start_ray.serve_on_ray", lambda *_: begun.append("ray") or 0)
    monkeypatch.setattr(
        "armwise.agent.cli.start_single.serve_here",
        lambda *_, replace: begun.append("replace" if replace else "single") or 0,
    )
    return begun


def test_serve_asks_its_one_question_with_the_key(
    config: Path, service: Canned, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ready(*arguments: Any) -> int:
        announce: Callable[[str, Path | None], bool] = arguments[-1]
        return int(not announce(service.url, None))

    monkeypatch.setattr("armwise.agent.cli.start_ray.serve_on_ray", ready)
    last = {"choices": [], "agent": agent()}
    service.reply("POST /v1/chat/completions", stream(word("The Danube."), last))
    assert "The Danube." in said(run("serve", "-c", config, "--ask", "which river?", "--key", "s3cret"), 0)
    assert {*service.shown} == {TOKEN}


@pytest.mark.parametrize(
    ("log_url", "told"), [(None, True), ("postgresql://db.internal/armwise", False)], ids=["file", "database"]
)
def test_serve_names_another_service_of_its_home_unless_the_log_is_a_database(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log_url: str | None, told: bool
) -> None:
    document = yaml.safe_load(config.read_text())
    document["applications"][0]["args"] |= {} if log_url is None else {"log_url": log_url}
    config.write_text(yaml.safe_dump(document))
    home, marked = tmp_path / "home", list[Server]()
    monkeypatch.setattr(
        "armwise.agent.cli.start_ray.serve_on_ray", lambda *_: marked.extend(find_servers(home)) or 0
    )
    with mark_served(home, "http://127.0.0.1:1"):
        output = said(run("serve", "-c", config), 0)
    line = f"Process {os.getpid()} serves http://127.0.0.1:1 from the same home, {home}. Both would learn"
    assert (line in output) is told
    port = document["http_options"]["port"]
    assert Server(os.getpid(), f"http://127.0.0.1:{port}") in marked, "the next one is told of this one"
    assert "from the same home" not in said(run("serve", "-c", config), 0), "both have ended"


@pytest.mark.parametrize(
    ("words", "how"),
    [
        ([], "ray"),
        (["--ray"], "ray"),
        (["--single-process"], "single"),
        (["--single-process", "--replace"], "replace"),
    ],
)
def test_a_configuration_is_served_by_one_process_where_it_is_asked_for(
    config: Path, monkeypatch: pytest.MonkeyPatch, began: list[str], words: list[str], how: str
) -> None:
    said(run("serve", "-c", config, *words), 0)
    assert began == [how]
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    if how != "replace":
        said(run("serve", "-c", config, *words), 0)
        assert began == [how, "ray"], "a cluster is not one process"


def test_one_process_refuses_options_of_deployments(config: Path) -> None:
    document = yaml.safe_load(config.read_text())
    document["applications"][0]["deployments"] = [{"name": "Ingress", "num_replicas": 2}, {"name": "Arms"}]
    config.write_text(yaml.safe_dump(document))
    refused = said(run("serve", "-c", config, "--single-process"), 2)
    assert "deployments has options for Ingress, Arms: leave these out, or --single-process" in refused


def test_without_a_key_none_is_sent(service: Canned) -> None:
    needs_a_key(service)
    assert "invalid_api_key: a key is needed" in said(run("status", "--url", service.url), 1)
    assert set(service.shown) == {None}


@pytest.mark.parametrize(
    ("status", "body"), [(404, {"detail": "Not Found"}), (404, ["what?"]), (502, b"<html>")], ids=str
)
def test_a_failure_in_the_words_of_another_is_told_as_it_is(
    service: Canned, status: int, body: object
) -> None:
    service.reply("GET /v1/policy", body, status)
    words = body.decode() if isinstance(body, bytes) else json.dumps(body)
    assert f"/v1/policy gave {status}, {words}" in said(run("status", "--url", service.url), 1)


@pytest.mark.parametrize("body", [{}, {"service": "other"}, [], "hello", b"<html>"], ids=str)
@pytest.mark.parametrize(
    "verb", [["status"], ["feedback", "d-1", "thumb=1"], ["ask", "?"]], ids=lambda v: v[0]
)
def test_another_program_on_the_port_is_suspected(service: Canned, verb: list[str], body: object) -> None:
    for route in ("GET /ready", "GET /v1/policy", "GET /v1/arms", "POST /v1/feedback"):
        service.reply(route, body)
    service.reply("POST /v1/chat/completions", body)
    assert "another program" in said(run(*verb, "--url", service.url), 1)


@pytest.mark.parametrize(
    "verb",
    [
        *(["status"], ["feedback", "d-1", "thumb=1"], ["ask", "?"], ["verify", "d-1"]),
        *(["policy", verb, "1", "--reason", "better"] for verb in ("promote", "rollback")),
        ["policy", "canary", "1", "--share", "0.1", "--reason", "new"],
    ],
    ids=lambda verb: " ".join(verb[:2]),
)
def test_without_a_service_the_address_and_the_remedy_are_named(nowhere: str, verb: list[str]) -> None:
    output = said(run(*verb, "--url", nowhere), 1)
    assert f"no service answers at {nowhere}" in output
    assert "`armwise serve`" in output


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://127.0.0.1", "http://h:x"])
def test_an_address_that_is_none_is_named(url: str) -> None:
    assert f"{url!r} is not an address" in said(run("ask", "?", "--url", url), 1)


# -- refusals ------------------------------------------------------------------------------------------

SIMULATE = "lab simulate {questions} -o {out} --metric right="
WRONG = [
    ("sreve", "No such command 'sreve'"),
    ("lab serve", "No such command 'serve'"),
    *((f"ingest {words} -c {{config}}", "SOURCE --name NAME") for words in ("", "x", "--name x")),
    *((f"ingest {words} --into a -c {{config}}", "no source") for words in ("x", "--name x", "--strict")),
    ("lab train {questions} -o {out} --measure em=big -c {config}", "'big' is not a number; name=weight was"),
    ("serve --replace -c {config}", "`serve deploy` replaces a service"),
    ("feedback d-1 thumb", "'thumb': metric=value was expected, such as thumb=1"),
    ("feedback d-1 =1", "'=1': metric=value was expected"),
    ("status --key schlüssel", "codec can't encode"),
    ("lab simulate {questions} -o {out}", "--metric"),
    (f"{SIMULATE}bleu", "bleu"),
    (f"{SIMULATE}em --endpoint rerank", "rerank"),
    (f"{SIMULATE}em -k 0", "k"),
    *(
        (f"key create --name app {words} -c {{config}}", message)
        for words, message in (
            ("--scope root", "got 'root'"),
            ("--max-budget 5", "needs both an amount and budget_duration"),
            ("--tag team", "name=value was expected"),
            ("--expires 2020-01-01T00:00Z", "is in the past"),
            ("--project A", "got 'A'"),
        )
    ),
]


@pytest.mark.parametrize(("words", "message"), WRONG)
def test_a_wrong_request_is_refused_before_anything_begins_or_is_asked(
    config: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    service: Canned,
    began: list[str],
    words: str,
    message: str,
) -> None:
    monkeypatch.setenv("ARMWISE_URL", service.url)
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"id": "q1", "question": "?", "answers": ["a"], "gold_ids": []}\n')
    given = words.format(config=config, questions=questions, out=tmp_path / "out").split()
    assert message in said(run(*given), 2)
    assert (service.shown, began) == ([], [])
    assert "there is no log at" in said(run("key", "list", "-c", config), 2)


# -- keys ----------------------------------------------------------------------------------------------


def made(config: Path, *words: object) -> str:
    result = run("key", "create", "--name", "app", *words, "-c", config)
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


def test_a_key_is_made_in_the_log_before_the_service_starts_and_disabled_there(config: Path) -> None:
    words = ("--scope", "decide", "--rpm-limit", "60", "--tag", "team=search", "--group", "a", "--group", "b")
    token = made(config, *words)
    found = keys.TOKEN.fullmatch(token)
    assert found is not None
    public_id, secret = found.groups()
    with closing(Store(load(config).database_url)) as store:
        (key,) = keys.read(store)
    assert (key.public_id, key.secret_hash) == (public_id, keys.hash_secret(secret))
    assert (key.settings.scopes, key.settings.limits.rpm_limit) == (("decide",), 60)
    assert (key.settings.tags, key.settings.groups) == ({"team": "search"}, ("a", "b"))
    listed = said(run("key", "list", "-c", config), 0)
    assert public_id in listed
    assert secret not in listed
    assert f"key {public_id} is disabled" in said(run("key", "disable", public_id, "-c", config), 0)
    assert "no key 'f00'" in said(run("key", "disable", "f00", "-c", config), 2)


def test_a_budget_in_dollars_needs_the_price_of_every_model(config: Path, service: Canned) -> None:
    def examined() -> str:
        return re.sub(r"\s+", " ", run("doctor", "-c", config).output)

    service.has_models("m")
    budget = ("--max-budget", "5", "--budget-duration", "1d")
    token = made(config, *budget, "--scope", "admin")
    llm = {"engine": "openai", "base_url": f"{service.url}/v1", "model": "m"}
    listening_on(config, "127.0.0.1", llm=llm)
    problem = f"no price is known for model 'm' at {service.url}/v1 (`llm`)"
    reason = f", and the budget of key {token.split('-')[2]} is in dollars (`max_budget`): set usd_per_"
    assert problem + reason in said(run("serve", "-c", config, "--prepare-only"), 2)
    assert f"problem: {problem}{reason}" in examined()
    output = said(run("key", "create", "--name", "more", *budget, "-c", config), 2)
    assert f"{problem}, and the key would have a budget in dollars: set usd_per_kilotoken_in" in output
    made(config, "--token-budget", "5", "--budget-duration", "1d")
    said(run("key", "disable", token.split("-")[2], "-c", config), 0)
    said(run("serve", "-c", config, "--prepare-only"), 0)
    assert f"note: {problem}, so answers count as free; set usd_per_kilotoken_in" in examined()
    listening_on(config, "127.0.0.1", llm={**llm, "usd": 0})
    made(config, *budget)
    assert "no price" not in examined()


def test_an_expired_key_needs_no_price(config: Path, service: Canned) -> None:
    service.has_models("m")
    limits = keys.KeyLimits(max_budget=1.0, budget_duration="1d")
    with closing(Store(load(config).database_url)) as store:
        keys.create(store, keys.KeySettings("old", ("decide",), limits=limits, expires=1.0), 0.0)
    llm = {"engine": "openai", "base_url": f"{service.url}/v1", "model": "m"}
    said(run("serve", "-c", listening_on(config, "127.0.0.1", llm=llm), "--prepare-only"), 0)


def listening_on(config: Path, host: str, **changes: Any) -> Path:
    document = yaml.safe_load(config.read_text())
    document["http_options"]["host"] = host
    document["applications"][0]["args"] |= changes
    config.write_text(yaml.safe_dump(document))
    return config


def test_a_service_without_keys_says_that_it_is_open_to_this_machine(config: Path) -> None:
    output = said(run("serve", "-c", config, "--prepare-only"), 0)
    told = re.search(
        r"any program on this machine can use the service. To require one: armwise (key create .*?\.yaml)",
        output,
    )
    assert told is not None
    said(run(*shlex.split(told[1])), 0)
    assert "No API key" not in said(run("serve", "-c", config, "--prepare-only"), 0)


def test_a_start_names_a_model_that_its_endpoint_lacks_and_goes_on(config: Path, service: Canned) -> None:
    service.reply("GET /v1/models", {"data": [{"id": "large"}, {"id": "tiny"}]})
    llm = {"engine": "openai", "base_url": f"{service.url}/v1", "model": "larg"}
    listening_on(config, "127.0.0.1", llm=llm)
    output = said(run("serve", "-c", config, "--prepare-only"), 0)
    assert "has no model 'larg'; it has: large, tiny; correct llm.model" in output
    listening_on(config, "127.0.0.1", llm={**llm, "model": "large"})
    assert "model 'large'" not in said(run("serve", "-c", config, "--prepare-only"), 0)


def test_a_service_without_keys_does_not_listen_where_others_reach_it(config: Path) -> None:
    listening_on(config, "0.0.0.0")
    output = said(run("serve", "-c", config, "--prepare-only"), 2)
    assert "would listen on 0.0.0.0 without any key: create one with `armwise key create`" in output
    said(run("serve", "-c", listening_on(config, "0.0.0.0", open=True), "--prepare-only"), 0)
    listening_on(config, "0.0.0.0", open=False)
    token = made(config)
    said(run("serve", "-c", config, "--prepare-only"), 0)
    said(run("key", "disable", token.split("-")[2], "-c", config), 0)
    output = said(run("serve", "-c", config, "--prepare-only"), 0)
    assert "open to every" not in output, "a key was made: it is closed, and nobody has a key"


def test_whether_a_log_has_keys_that_cannot_be_read_is_not_known(config: Path) -> None:
    settings = load(config).model_copy(update={"log_url": "postgresql://127.0.0.1:9/armwise"})
    for host in ("127.0.0.1", "localhost"):
        assert is_open_to_all(settings, host) is None
    with pytest.raises(LogUnavailableError):
        is_open_to_all(settings, "0.0.0.0")


def test_a_portfolio_becomes_live_beside_the_arms_that_are_kept(service: Canned, tmp_path: Path) -> None:
    portfolio = tmp_path / "portfolio.yaml"
    part = {"kind": "dense", "params": {"backbone": "tiny"}, "action": False}
    portfolio.write_text(yaml.safe_dump({"arms": {"none": {"kind": "none"}, "dense": part}}))
    service.reply("PUT /v1/arms", {"arms": [{"name": "none"}, {"name": "fused"}]})
    output = said(run("policy", "apply", portfolio, "--keep", "fused", "--url", service.url), 0)
    assert output.strip() == "Arms now: none, fused"
    (document,) = service.asked
    assert document["arms"] == ["none", "fused"]
