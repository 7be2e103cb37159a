"""Tests leave the environment as it was, and those that take longest begin first."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import environment_restored, pytest_collection_modifyitems


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


def test_the_name_of_the_test_is_that_of_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    with environment_restored():
        monkeypatch.setenv("PYTEST_CURRENT_TEST", "another (teardown)")
        os.environ["NEW"] = "1"
    assert os.environ["PYTEST_CURRENT_TEST"] == "another (teardown)"
    assert "NEW" not in os.environ


@dataclass(frozen=True)
class Item:
    """A test as it was collected."""

    nodeid: str
    limit_s: float | None = None

    @property
    def path(self) -> Path:
        return Path(self.nodeid.split("::")[0])

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return pytest.mark.timeout(self.limit_s).mark if name == "timeout" and self.limit_s else None


def ordered(*items: Item) -> Sequence[str]:
    tests = list(items)
    pytest_collection_modifyitems(tests)  # type: ignore[arg-type]
    return [item.nodeid for item in tests]


def test_a_real_service_begins_then_what_may_take_long_then_files_of_many_tests() -> None:
    one, many = Item("tests/test_one.py::a"), (Item("tests/test_many.py::a"), Item("tests/test_many.py::b"))
    long = Item("tests/test_long.py::short"), Item("tests/test_long.py::long", limit_s=300.0)
    live = Item("tests/live/test_live.py::a"), Item("tests/live/test_front_door.py::a", limit_s=60.0)
    assert ordered(one, *many, *long, *live) == [
        "tests/live/test_front_door.py::a",
        "tests/live/test_live.py::a",
        "tests/test_long.py::short",
        "tests/test_long.py::long",
        "tests/test_many.py::a",
        "tests/test_many.py::b",
        "tests/test_one.py::a",
    ]
