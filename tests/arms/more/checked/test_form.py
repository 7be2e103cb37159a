"""Schemas of requests: validated in a process of its own, whatever they ask for."""

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from armwise.arms.more.checked import form
from armwise.arms.more.checked.command import CommandLimits, run_confined
from armwise.arms.more.checked.form import satisfies

SHORT = CommandLimits(seconds=1.0, memory=1 << 30, output=1 << 16)


@pytest.mark.parametrize(
    ("schema", "answer", "valid"),
    [
        ({"type": "integer"}, "3", True),
        ({"type": "integer"}, '"3"', False),
        ({"type": "integer"}, "three", False),
        ({"type": "integer"}, "[" * 100_000, False),
        ({"type": "whole"}, "3", None),
        ({"$ref": "#/$defs/none"}, "3", None),
        ({"$ref": "https://schemas.example/a"}, "3", None),
        ({"$ref": "file:///etc/passwd"}, "3", None),
    ],
)
def test_an_answer_satisfies_a_schema_or_not_or_it_cannot_be_known(
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
    ],
    ids=["a pattern", "references"],
)
@pytest.mark.slow
def test_a_schema_without_end_is_given_up(schema: dict[str, Any], answer: str) -> None:
    started = time.perf_counter()
    assert satisfies(schema, answer, SHORT) is None
    assert time.perf_counter() - started < 10.0


def test_a_validation_that_ends_with_an_error_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (broken := tmp_path / "broken.py").write_text("raise EOFError('marshal data too short')")
    monkeypatch.setattr(form, "WORDS", (*form.WORDS[:-1], str(broken)))
    assert satisfies({"type": "integer"}, "3") is None


@pytest.mark.parametrize("python", [form.WORDS[:-1], (sys.executable,)], ids=["a schema", "a command"])
def test_a_process_in_limits_compiles_no_module_that_would_be_cut_off(
    python: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "long.py").write_text("x = [" + "'text', 1.5, " * 20_000 + "]\n")
    (tmp_path / "main.py").write_text(f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import long")
    for _ in range(2):
        code, _, complaints = run_confined((*python, str(tmp_path / "main.py")), "", form.LIMITS)
        assert (code, complaints) == (0, "")
