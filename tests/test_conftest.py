"""Tests leave the environment as it was."""

import os

import pytest

from tests.conftest import environment_restored


def test_what_is_set_changed_or_removed_in_the_environment_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPT", "as it was")
    monkeypatch.setenv("REMOVED", "there")
    before = dict(os.environ)
    with environment_restored():
        os.environ.update({"KEPT": "another", "NEW": "1"})
        del os.environ["REMOVED"]
    assert dict(os.environ) == before


def test_it_is_undone_where_a_block_fails() -> None:
    @environment_restored()
    def start() -> None:
        os.environ["NEW"] = "1"
        raise RuntimeError("no Ray")

    with pytest.raises(RuntimeError, match="no Ray"):
        start()
    assert "NEW" not in os.environ
