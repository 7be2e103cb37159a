"""The table of errors is complete: every code that is raised is a row, and every row is raised."""

import ast
import json
import re
from pathlib import Path

import pytest

from armwise.agent.access import Caller
from armwise.agent.api import errors
from armwise.agent.api.errors import ERRORS
from armwise.feedback.errors import (
    BehindError,
    ClockError,
    LogGapError,
    LogUnavailableError,
    SchemaError,
    StoreError,
)

ROOM = Path(errors.__file__).parent
OTHERS = [ROOM.parent / name for name in ("hosts", "console", "gateways", "lab")]


def errors_of_haproxy() -> list[dict[str, object]]:
    """Return the bodies with which HAProxy answers by itself."""
    text = (ROOM.parent / "hosts" / "haproxy.cfg").read_text(encoding="utf-8")
    return [json.loads(body)["error"] for body in re.findall(r"string '(.*?)'", text)]


def codes_raised() -> dict[str, list[str]]:
    """Return the codes that the room, the hosts and wings pass to `ApiError`, by file; "" for no literal."""
    found: dict[str, list[str]] = {}
    for path in sorted(path for room in (ROOM, *OTHERS) for path in room.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "ApiError":
                code = node.args[0].value if isinstance(node.args[0], ast.Constant) else ""
                found.setdefault(path.stem, []).append(str(code))
    return found


@pytest.mark.slow
def test_every_code_that_is_raised_is_in_the_table() -> None:
    raised = codes_raised()
    in_errors = raised.pop("errors")
    literal = {code for code in in_errors if code} | {code for codes in raised.values() for code in codes}
    assert literal <= ERRORS.keys()
    assert "invalid_value" in literal


@pytest.mark.slow
def test_every_row_of_the_table_is_raised() -> None:
    literal = {code for codes in codes_raised().values() for code in codes}
    literal |= {str(error["code"]) for error in errors_of_haproxy()}
    translated = {kind.code for kind in ERRORS.values() if kind.raised_by or kind.ends or kind.framework}
    assert literal | translated >= ERRORS.keys()


def test_haproxy_answers_as_the_table_says() -> None:
    answers = errors_of_haproxy()
    assert "replica_lost" in {answer["code"] for answer in answers}
    for answer in answers:
        error = errors.ApiError(str(answer["code"]), str(answer["message"]))
        assert error.envelope(None).model_dump()["error"] == answer


@pytest.mark.parametrize("error", [LogUnavailableError, SchemaError, LogGapError, BehindError])
def test_a_log_that_cannot_be_used_is_worth_a_retry(error: type[StoreError]) -> None:
    found = errors.translate(error("why"))
    assert (found.code, found.status, found.retryable, found.message) == (
        "log_unavailable",
        503,
        True,
        "why",
    )
    assert errors.translate(ClockError("a stamp in the future")).status == 500


def test_a_caller_sees_an_error_without_the_name_of_its_project() -> None:
    error = errors.ApiError(
        "invalid_value", "'acme~a'", decision_id="acme~b", reasons=["'acme~c'", "'acme~d'"]
    )
    shown = error.show_to(Caller("k", frozenset(), "acme"))
    assert (shown.message, shown.decision_id, shown.reasons) == ("'a'", "b", ["'c'", "'d'"])


def test_no_code_and_no_exception_is_in_two_rows() -> None:
    assert len(ERRORS) == len(errors._KINDS)  # noqa: SLF001
    raised = [exception for kind in ERRORS.values() for exception in kind.raised_by]
    assert len(raised) == len(set(raised))
