"""Secrets come from a variable, or from the file that one names; what they hold is in no message."""

from pathlib import Path

import pytest

from armwise.arms.secrets import read_secret


def test_a_file_is_read_where_the_variable_is_not_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("A_KEY", raising=False)
    monkeypatch.delenv("A_KEY_FILE", raising=False)
    assert read_secret("A_KEY") == ""
    path = tmp_path / "key"
    path.write_text("from a file\n")
    monkeypatch.setenv("A_KEY_FILE", str(path))
    assert read_secret("A_KEY") == "from a file"
    monkeypatch.setenv("A_KEY", "from a variable")
    assert read_secret("A_KEY") == "from a variable"


def test_a_file_that_cannot_be_read_keeps_its_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("A_KEY", raising=False)
    monkeypatch.setenv("A_KEY_FILE", str(tmp_path))
    with pytest.raises(ValueError, match=r"A_KEY_FILE: '.*' cannot be read \(Is a directory\)"):
        read_secret("A_KEY")
    path = tmp_path / "key"
    path.write_bytes(b"hidden\xff")
    monkeypatch.setenv("A_KEY_FILE", str(path))
    with pytest.raises(ValueError, match="not a text") as raised:
        read_secret("A_KEY")
    assert "hidden" not in str(raised.value)
