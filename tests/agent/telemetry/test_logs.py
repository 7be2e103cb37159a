"""Lines in JSON: one for each record, with the ids of the turn, and without its texts."""

import json
import logging
import os
import re
from collections.abc import Callable
from io import StringIO
from logging.config import dictConfig
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from armwise.agent import telemetry
from armwise.agent.telemetry import JsonFormatter, TelemetrySpec, begin
from armwise.arms import tracing
from tests.agent.fakes import Service
from tests.agent.telemetry.conftest import beginning

QUESTION = "Where is 'the' sea\nof tranquillity?"
OUTSIDE = tracing.TracedTurn()
VLLM = Path(telemetry.__file__).with_name("vllm.json")
SECRET = "sk-aw-0123456789ab-" + "c" * 48


def lines(
    record: logging.LogRecord, turn: tracing.TracedTurn = OUTSIDE, content: bool = False
) -> dict[str, Any]:
    token = tracing.TURN.set(turn)
    try:
        written = JsonFormatter(content).format(record)
    finally:
        tracing.TURN.reset(token)
    assert "\n" not in written
    found: dict[str, Any] = json.loads(written)
    return found


def record(message: str, *args: object, error: BaseException | None = None) -> logging.LogRecord:
    info = None if error is None else (type(error), error, None)
    return logging.LogRecord("agent.x", logging.WARNING, "", 1, message, args, info)


def test_a_line_has_the_decision_and_the_trace_that_it_belongs_to(traced: Callable[..., Any]) -> None:
    traced()
    with tracing.span("work", {}):
        found = lines(record("%d arms", 3), tracing.TracedTurn("d-1", "talk", QUESTION))
        ids = tracing.ids_of_span()
    assert (found["message"], found["level"], found["logger"]) == ("3 arms", "WARNING", "agent.x")
    assert (found["decision_id"], (found["trace_id"], found["span_id"])) == ("d-1", ids)
    assert re.fullmatch(r"[\d-]{10}T[\d:]{8}\.\d{3}\+00:00", found["timestamp"])
    assert found["pid"] == os.getpid()
    assert not {"decision_id", "trace_id"} & lines(record("idle")).keys()


@given(st.text(st.characters(codec=None)))
def test_any_text_is_one_line_of_json(text: str) -> None:
    lines(record("%s", text))


@pytest.mark.parametrize(
    "shown",
    [
        QUESTION,
        repr(QUESTION),
        repr({"query": f"In short: {QUESTION} Please."}),
        quote(QUESTION),
        urlencode({"q": QUESTION}),
    ],
)
@pytest.mark.parametrize("content", [False, True])
def test_the_question_of_a_turn_is_in_its_lines_only_where_it_is_asked_for(shown: str, content: bool) -> None:
    turn = tracing.TracedTurn("d-1", "", QUESTION)
    found = lines(record("failed: %s", shown, error=ValueError(shown)), turn, content)
    for name in ("message", "exception"):
        assert ("tranquillity" in found[name]) is content
        assert ("[question]" in found[name]) is not content


def test_a_question_is_hidden_unless_something_else_is_said() -> None:
    token = tracing.TURN.set(tracing.TracedTurn("d-1", "", QUESTION))
    try:
        assert (
            json.loads(JsonFormatter().format(record("failed: %s", QUESTION)))["message"]
            == "failed: [question]"
        )
    finally:
        tracing.TURN.reset(token)


@pytest.mark.parametrize(("question", "message"), [("Why?", "no [question] here"), ("Why", "no Why here")])
def test_a_question_of_four_characters_is_hidden(question: str, message: str) -> None:
    found = lines(record("no %s here", question), tracing.TracedTurn("d-1", "", question))
    assert found["message"] == message


@pytest.mark.parametrize("content", [False, True])
def test_no_secret_of_a_key_is_in_a_line(content: bool) -> None:
    found = lines(record("refused: %s", f"Bearer {SECRET}", error=ValueError(SECRET)), content=content)
    assert found["message"] == "refused: Bearer sk-aw-0123456789ab-..."
    assert "c" * 12 not in found["exception"]


def test_a_line_has_the_fields_of_its_record_and_none_of_them_controls_a_terminal() -> None:
    one = record("turn")
    fields = {"seconds": 0.5, "arm": "\x1b[2Jbm25", "key": None, "folder": Path("/tmp")}
    vars(one)["fields"] = fields
    found = lines(one)
    assert {name: found[name] for name in fields} == {
        "seconds": 0.5,
        "arm": "\\x1b[2Jbm25",
        "key": None,
        "folder": "/tmp",
    }


@pytest.mark.parametrize("content", [False, True])
async def test_each_turn_has_a_line_that_says_how_it_ended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bool
) -> None:
    caplog.set_level(logging.INFO, "agent.turns")
    async with Service(tmp_path, telemetry={"logs": "json", "log_content": content}).running() as service:
        body = {"query": "Where is the sea?", "model": "arm/bm25"}
        answered = await service.client.post("/v1/retrieve", json=body)
        late = await service.client.post(
            "/v1/retrieve", json=body, headers={"x-request-timeout-seconds": "0.000001"}
        )
    assert (answered.status_code, late.status_code) == (200, 408)
    first, second = (vars(one)["fields"] for one in caplog.records if one.name == "agent.turns")
    assert (first["arm"], first["status"]) == ("bm25", "ok")
    assert 0 < first["seconds"] < 60
    assert second["status"] == "deadline_exceeded"
    assert first.get("question") == ("Where is the sea?" if content else None)


async def test_a_plain_log_has_no_line_for_a_turn(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "agent.turns")
    assert (await service.client.post("/v1/retrieve", json={"query": "Where?"})).status_code == 200
    assert [one for one in caplog.records if one.name == "agent.turns"] == []


@pytest.mark.parametrize(("content", "shown"), [(True, "Where is the sea?"), (False, "[question]")])
def test_a_process_writes_what_libraries_log_as_json_and_files_for_its_user_alone(
    monkeypatch: pytest.MonkeyPatch, content: bool, shown: str
) -> None:
    with beginning(monkeypatch) as written:
        library, theirs = logging.getLogger("library.of.others"), StringIO()
        library.addHandler(logging.StreamHandler(theirs))
        library.propagate = False
        begin(TelemetrySpec(logs="json", log_content=content))
        tracing.TURN.set(tracing.TracedTurn("d-1", "", "Where is the sea?"))
        library.info("asked: %s\n", "Where is the sea?")
        library.debug("in detail")
        logging.getLogger("httpx").info("GET http://service/?q=secret")
        logging.getLogger("httpx").warning("slow")
        assert os.environ["VLLM_LOGGING_CONFIG_PATH"] == str(VLLM)
        assert os.umask(0o077) == 0o077
    first, second = map(json.loads, written.getvalue().splitlines())
    assert (first["logger"], first["message"]) == ("library.of.others", f"asked: {shown}\\n")
    assert (second["logger"], second["message"]) == ("httpx", "slow")
    assert theirs.getvalue() == ""


def test_a_process_leaves_its_log_as_it_is_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with beginning(monkeypatch) as written:
        begin(TelemetrySpec())
        assert logging.getLogger().handlers == []
        assert "VLLM_LOGGING_CONFIG_PATH" not in os.environ
    assert written.getvalue() == ""


def test_vllm_is_given_the_same_form(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("vllm.engine")
    try:
        dictConfig(json.loads(VLLM.read_text()))
        logger.info("loaded")
    finally:
        logging.getLogger("vllm").handlers.clear()
    assert json.loads(capsys.readouterr().err)["message"] == "loaded"
