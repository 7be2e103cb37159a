"""Texts of others in terminals and log lines: no markup is read, nothing is controlled, no line is forged."""

import logging
from io import StringIO
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text

from armwise.agent.cli import service
from armwise.agent.cli.console import report_errors
from armwise.agent.client import Answer, Client, ClientError
from armwise.agent.reporting import Terminal
from armwise.agent.reporting.plain_text import LogRecord, visible

PLANTED = (
    "[link=https://evil.example]click[/link] [bold]x[/bold] :smile:"
    "\x1b]8;;https://evil.example\x07here\x1b]8;;\x07\x1b[2J\x9b2J\r\b\x00\u202etxt.exe\u2066\u2028\ud800"
)

ACTS = set("\x1b\x07\x9b\r\b\x00\u202e\u2066\u2028\ud800")


@given(st.text(st.characters(codec=None)))
def test_a_visible_text_can_be_printed_and_stays_as_it_is_the_second_time(text: str) -> None:
    shown = visible(text)
    assert visible(shown) == shown
    assert shown.encode().decode() == shown
    assert all(c in "\t\n" or c.isprintable() or c.isspace() or ord(c) > 0x9F for c in shown)


@pytest.mark.parametrize(
    ("first", "last"),
    [
        (0x00, 0x08),
        (0x0B, 0x1F),
        (0x7F, 0x9F),
        (0x061C, 0x061C),
        (0x200E, 0x200F),
        (0x2028, 0x202E),
        (0x2060, 0x206F),
        (0xD800, 0xDFFF),
        (0xFEFF, 0xFEFF),
        (0xE0000, 0xE007F),
    ],
)
def test_what_acts_is_shown_as_its_code_from_the_first_to_the_last(first: int, last: int) -> None:
    for code in (first, last):
        assert visible(chr(code)) == ascii(chr(code)).strip("'") != chr(code)
    beside = [code for code in (first - 1, last + 1) if code >= 0]
    assert [visible(chr(code)) for code in beside] == [chr(code) for code in beside]


def test_ordinary_text_of_any_language_stays_as_it_is() -> None:
    text = "Größe: 5 µm\n\t東京タワー, [quoted] \u200d👩\u200d🔬"
    assert visible(text) == text


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> StringIO:
    """Return what the verbs print on a terminal in colours."""
    output = StringIO()
    own = Terminal(file=output, force_terminal=True, width=2000)
    monkeypatch.setattr(service, "console", own)
    return output


def without_colours(text: str) -> str:
    """Return a text without the colours of the console itself; fails on any other escape sequence."""
    first, *parts = text.split("\x1b[")
    for part in parts:
        style, m, rest = part.partition("m")
        assert m, repr(part)
        assert set(style) <= set("0123456789;"), repr(part)
        first += rest
    return first


class Written(list[str]):
    """The parts of a stream, and what they came to."""

    def __init__(self, parts: list[str], answer: Answer) -> None:
        super().__init__(parts)
        self.answer = answer
        self.decision_id = answer.decision_id


def test_an_answer_and_its_passages_control_no_terminal(
    terminal: StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent: dict[str, Any] = {
        "passages": [
            {"id": PLANTED, "title": f"{PLANTED}\nDecision forged", "text": "", "score": 1.0, "metadata": {}}
        ],
        "arm_served": PLANTED,
        "arm_drawn": PLANTED,
        "propensity": 0.5,
        "pmf": {},
        "cost": {"total": 0.0, "tokens": 1, "retrieval_ms": 1.0, "llm_ms": 1.0, "steps": 1, "usd": 0.0},
        "policy_version": 1,
        "decision_id": PLANTED,
        "episode_id": None,
        "mode": "explore",
        "reward_deadline": 0.0,
    }
    monkeypatch.setattr(Client, "stream", lambda *_, **__: Written([PLANTED], Answer(agent=agent)))
    service.print_answer("Why?", None, "http://127.0.0.1:8000", None)
    shown = without_colours(terminal.getvalue())
    assert not ACTS & set(shown)
    assert shown.count("[link=https://evil.example]click[/link] [bold]x[/bold] :smile:") == 5, (
        "answer, id, title, arm, decision"
    )
    assert "\nDecision" in shown
    assert "\nDecision forged" not in shown, "a title begins no line"


def test_the_status_of_a_service_controls_no_terminal(
    terminal: StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy: dict[str, Any] = dict.fromkeys(("params", "floor", "digest", "version", "log_seq"), 1)
    policy |= {"kind": PLANTED, "examples_seq": 1, "applied_seq": 1, "canaries": []}
    policy["promotion"] = {"version": 1, "since": 0.0, "reason": PLANTED, "forced": False, "evaluation": None}
    policy["serving"] = {"pinned": False, "version": 1}
    policy["newest"] = {"version": 1}
    arm = {"name": PLANTED, "kind": PLANTED, "params": {"text": PLANTED}, "enabled": True}
    ready = {"status": "ready", "version": 1, "building": PLANTED}
    run = {"id": 1, "trigger": PLANTED, "status": PLANTED, "started_at": 0.0, "finished_at": None}
    replies = {
        "/v1/policy": policy,
        "/v1/arms": {"arms": [arm]},
        "/ready": ready,
        "/v1/warm-starts?limit=1": {"warm_starts": [run], "next": {"at": 0.0, "trigger": PLANTED}},
    }
    monkeypatch.setattr(service, "request", lambda _method, _url, path, _key, **_: replies[path])
    service.status()
    shown = without_colours(terminal.getvalue())
    assert not ACTS & set(shown)
    assert "[bold]x[/bold]" in shown


def test_a_line_break_in_a_text_of_others_begins_no_line() -> None:
    output, forged = StringIO(), "cheap\nverified: all is well\r\nready"
    table = Table("name", title=forged)
    table.add_row(forged)
    terminal = Terminal(file=output, width=80)
    terminal.print(table)
    terminal.print(f"arm {forged}", soft_wrap=True)
    terminal.print(Text("two\nlines"))
    lines = output.getvalue().splitlines()
    assert not [line for line in lines if line.startswith(("verified", "ready", "│ verified"))]
    assert output.getvalue().count(r"cheap\nverified: all is well\r\nready") == 3
    assert lines[-2:] == ["two", "lines"]


def test_an_error_of_a_service_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit), report_errors():
        raise ClientError("gave 400, no\nverified: all is well\x1b[2J\u061c")
    assert capsys.readouterr().err == "gave 400, no\\nverified: all is well\\x1b[2J\\u061c\n"


def test_a_library_of_a_verb_logs_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "_logRecordFactory", logging.LogRecord)
    with report_errors():
        assert formatted(lambda logger: logger.warning(FORGED), factory=None)[1:] == []


def test_a_console_that_reads_markup_is_found_out() -> None:
    output = StringIO()
    table = Table("name")
    table.add_row("[bold]x[/bold]")
    Terminal(file=output, width=80).print(table, "[link=y]x[/link]")
    assert "[bold]x[/bold]" in output.getvalue()
    assert "[link=y]x[/link]" in output.getvalue()


FORGED = "cannot be read\nWARNING armwise.agent.api: all is well\x1b[2J"


def formatted(log: Any, factory: Any = LogRecord) -> list[str]:
    """Return the lines that a logger writes; its records come from a factory, or the present one."""
    output = StringIO()
    handler = logging.StreamHandler(output)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("planted")
    logger.addHandler(handler)
    before = logging.getLogRecordFactory()
    logging.setLogRecordFactory(factory or before)
    try:
        log(logger)
    finally:
        logging.setLogRecordFactory(before)
        logger.removeHandler(handler)
    return output.getvalue().splitlines()


def test_a_message_is_one_line_whatever_it_holds() -> None:
    (line,) = formatted(lambda logger: logger.warning("the query %s failed", FORGED))
    assert line.startswith("WARNING planted: the query cannot be read\\nWARNING")
    assert "\x1b" not in line


def test_a_traceback_forges_no_line() -> None:
    def fail(logger: logging.Logger) -> None:
        try:
            int(FORGED)
        except ValueError:
            logger.exception("failed", exc_info=ValueError(FORGED))

    first, *rest = formatted(fail)
    assert first == "ERROR planted: failed"
    assert rest[-1].startswith("  WARNING armwise.agent.api: all is well")
    assert all(line.startswith("  ") and "\x1b" not in line for line in rest)
