"""The two small commands around an engine: ask it once, unpack its weights."""

from pathlib import Path

import pytest

from arms.llm import __main__ as ask
from arms.models import ModelNotFoundError
from arms.models import gguf as weights


def test_asking_writes_the_answer_and_its_usage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = '{"engine": "scripted", "replies": {"2 + 2?": "It is 4."}}'
    monkeypatch.setattr("sys.argv", ["ask", spec, "2 + 2?"])
    ask.main()
    answer, usage = capsys.readouterr().out.splitlines()
    assert answer == "It is 4."
    assert usage.startswith("[scripted: ")
    assert "3 written" in usage


def test_a_directory_that_exists_is_not_unpacked_again(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert weights.unpack("package:no_such_package/model.gguf", tmp_path) == tmp_path
    assert [file.name for file in tmp_path.iterdir()] == ["config.json"]


def test_a_model_that_cannot_be_found_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no_such_package"):
        weights.unpack("package:no_such_package/model.gguf", tmp_path / "model")
    assert list(tmp_path.iterdir()) == []
