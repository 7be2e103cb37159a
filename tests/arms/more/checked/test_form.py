"""Validation of answers against schemas, in processes of their own and within a time limit."""

import gc
import json
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from armwise.arms.base import ArmError
from armwise.arms.more.checked import form
from armwise.arms.more.checked.command import CommandLimits, run_confined
from armwise.arms.more.checked.form import Validator, open_validator, satisfies

WHOLE = json.dumps({"type": "integer"})


@pytest.fixture
def validator() -> Validator:
    return Validator()


def process_of(validator: Validator) -> "subprocess.Popen[str]":
    assert validator.process is not None
    return validator.process


@pytest.mark.parametrize(
    ("schema", "answer", "valid"),
    [
        ({"type": "integer"}, "3", True),
        ({"type": "integer"}, '"3"', False),
        ({"type": "integer"}, "[" * 100_000, False),
        ({"type": "number"}, "NaN", False),
        ({"type": "string"}, '"\ud800"', True),
        ({"type": "string"}, '"a\\n\u2028b"', True),
        ({"type": "whole"}, "3", None),
        ({"$ref": "#/$defs/none"}, "3", None),
        ({"$ref": "https://schemas.example/a"}, "3", None),
        ({"$ref": "file:///etc/passwd"}, "3", None),
        ({"multipleOf": 0.1}, "1e999", None),
        ({"multipleOf": 0.1}, "9" * 400, None),
        ({"multipleOf": 0.5}, "1.5", True),
    ],
)
def test_an_answer_satisfies_a_schema_or_is_unknown(
    schema: dict[str, Any], answer: str, valid: bool | None
) -> None:
    assert satisfies(schema, answer) is valid


def doubling(depth: int) -> dict[str, Any]:
    """Return a schema that is validated two to the power of its depth times."""
    twice = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(depth)}
    return {"$ref": "#/$defs/d0", "$defs": {**twice, f"d{depth}": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("schema", "answer"),
    [
        ({"type": "string", "pattern": "^(a+)+$"}, '"' + "a" * 60 + '!"'),
        (doubling(60), "3"),
        ({"uniqueItems": True}, json.dumps([{"n": n} for n in range(70_000)])),
    ],
    ids=["a pattern", "references", "unique items"],
)
@pytest.mark.slow
def test_a_validation_that_takes_too_long_is_given_up(
    validator: Validator, monkeypatch: pytest.MonkeyPatch, schema: dict[str, Any], answer: str
) -> None:
    monkeypatch.setattr(form, "SECONDS", 2.0)
    started = time.perf_counter()
    with pytest.raises(ArmError, match="not validated within 2 s"):
        validator.find_error(json.dumps(schema), answer)
    assert time.perf_counter() - started < 10.0
    assert validator.find_error(WHOLE, "3") == "", "the next answer is validated"


@pytest.mark.slow
def test_answers_wait_for_a_slow_one_no_longer_than_the_limit(
    validator: Validator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(form, "SECONDS", 2.0)
    slow = json.dumps({"pattern": "^(a+)+$"}), '"' + "a" * 60 + '!"'
    started = time.perf_counter()
    with ThreadPoolExecutor(8) as threads:
        waiting = [threads.submit(validator.find_error, *slow) for _ in range(8)]
        failures = [one.exception() for one in waiting]
    assert time.perf_counter() - started < 10.0, "and not 16 s"
    assert all(isinstance(failure, ArmError) for failure in failures)
    assert any("queued before it" in str(failure) for failure in failures)
    assert Validator().find_error(WHOLE, "3") == ""


def test_a_process_validates_many_answers(validator: Validator) -> None:
    assert validator.find_error(WHOLE, "3") == ""
    first = process_of(validator)
    assert validator.find_error(WHOLE, "x").startswith("not JSON")
    assert validator.find_error(json.dumps({"type": "string"}), "3") == "$: 3 is not of type 'string'"
    assert process_of(validator) is first


def test_answers_to_requests_share_a_process() -> None:
    assert satisfies({"type": "integer"}, "3")
    first = open_validator("requests").process
    assert satisfies({"type": "string"}, "3") is False
    assert first is not None
    assert open_validator("requests").process is first
    assert open_validator("other").process is None


@pytest.mark.slow
def test_the_time_between_answers_does_not_count(
    validator: Validator, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert validator.find_error(WHOLE, "3") == ""
    monkeypatch.setattr(form, "SECONDS", 1.0)
    assert validator.find_error(WHOLE, "3") == ""
    with pytest.raises(subprocess.TimeoutExpired):
        process_of(validator).wait(1.5)


def test_a_process_that_was_killed_is_replaced(validator: Validator) -> None:
    assert validator.find_error(WHOLE, "3") == ""
    process_of(validator).kill()
    process_of(validator).wait()
    assert validator.find_error(WHOLE, "3") == ""


def test_a_process_that_ends_without_a_reply_has_not_validated(
    validator: Validator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (broken := tmp_path / "broken.py").write_text("raise SystemExit(7)")
    monkeypatch.setattr(form, "WORDS", (sys.executable, str(broken)))
    with pytest.raises(ArmError, match="its process ended with code 7"):
        validator.find_error(WHOLE, "3")


def test_a_process_ends_with_its_validator() -> None:
    validator = Validator()
    assert validator.find_error(WHOLE, "3") == ""
    process = process_of(validator)
    del validator
    gc.collect()
    assert process.returncode == -signal.SIGKILL


def test_a_process_has_limited_memory_and_no_variables(
    validator: Validator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "sk-1")
    assert validator.find_error(WHOLE, "3") == ""
    about = Path("/proc", str(process_of(validator).pid))
    assert b"SECRET" not in (about / "environ").read_bytes()
    (limit,) = [line for line in (about / "limits").read_text().splitlines() if "address space" in line]
    assert limit.split()[3:5] == ["1073741824", "1073741824"]


@pytest.mark.slow
def test_a_process_ends_though_its_service_was_killed() -> None:
    given = ['{"pattern": "^(a+)+$"}', '"' + "a" * 60 + '!"', 0.5]
    with subprocess.Popen(form.WORDS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        process.stdin.write(json.dumps(given) + "\n")
        process.stdin.flush()
        assert process.wait(30.0) == -signal.SIGALRM


def test_a_process_ends_with_its_input() -> None:
    assert subprocess.run(form.WORDS, input="", text=True, check=True, timeout=30.0).returncode == 0


def test_a_command_compiles_no_module_that_would_be_cut_off(tmp_path: Path) -> None:
    (tmp_path / "long.py").write_text("x = [" + "'text', 1.5, " * 20_000 + "]\n")
    (tmp_path / "main.py").write_text(f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import long")
    limits = CommandLimits(seconds=5.0, memory=1 << 30, output=1 << 16)
    for _ in range(2):
        code, _, complaints = run_confined((sys.executable, str(tmp_path / "main.py")), "", limits)
        assert (code, complaints) == (0, "")
