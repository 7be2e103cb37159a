"""The comparison of exported names: a program that imports them works as before, or the break is named."""

import math
import sys
from types import ModuleType
from typing import Any

import pytest

from tests.release.faces import Face, broken_faces, face_of

FACE: Face = {
    "Client": {"url": "optional, number 1", "key": "optional"},
    "Client.ask": {"self": "required, number 1", "question": "required, number 2", "k": "optional"},
    "LARGEST": None,
}


@pytest.mark.parametrize(
    ("name", "now", "expected"),
    [
        ("Client", {"url": "optional, number 1"}, ["no longer takes key"]),
        (
            "Client",
            {"url": "required, number 1", "key": "optional"},
            ["has the argument url required, number 1, and had it optional, number 1"],
        ),
        (
            "Client",
            {"url": "optional", "key": "optional"},
            ["has the argument url optional, and had it optional, number 1"],
        ),
        (
            "Client",
            {"key": "optional, number 1", "url": "optional, number 2"},
            ["has the argument url optional, number 2, and had it optional, number 1"],
        ),
        (
            "Client",
            {"url": "optional, number 1", "key": "optional", "team": "required"},
            ["requires team, and did not know it"],
        ),
        ("Client", {"url": "optional, number 1", "key": "optional", "team": "optional"}, []),
        ("Client", {"url": "optional, number 1", "key": "optional, number 2"}, []),
        (
            "Client.ask",
            {"self": "required, number 1", "question": "optional, number 2", "k": "optional", "rest": "any"},
            [],
        ),
    ],
)
def test_arguments_can_be_given_as_before(name: str, now: dict[str, str], expected: list[str]) -> None:
    found = broken_faces({"agent": FACE}, {"agent": {**FACE, name: now}})
    assert found == [f"agent.{name}: {one}" for one in expected]


@pytest.mark.parametrize("name", FACE)
def test_a_name_that_is_gone_is_named(name: str) -> None:
    left = {other: arguments for other, arguments in FACE.items() if other != name}
    assert broken_faces({"agent": FACE}, {"agent": left}) == [f"agent.{name}: is gone"]
    assert broken_faces({"agent": left}, {"agent": FACE}) == []
    assert f"agent.{name}: is gone" in broken_faces({"agent": FACE}, {})


def test_a_face_is_what_the_package_exports(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counter:
        def __init__(self, start: int, *, step: int = 1) -> None: ...

        def add(self, n: int = 1, *more: int, **by_name: Any) -> None: ...

        def _hidden(self) -> None: ...

    Counter.add.__module__ = "armwise.counter"
    module = ModuleType("counted")
    module.__all__ = ["Counter", "START", "floor"]  # type: ignore[attr-defined]
    for name, value in {"Counter": Counter, "START": 3, "floor": math.floor, "hidden": print}.items():
        setattr(module, name, value)
    monkeypatch.setitem(sys.modules, "counted", module)
    assert face_of("counted") == {
        "Counter": {"start": "required, number 1", "step": "optional"},
        "Counter.add": {
            "self": "required, number 1",
            "n": "optional, number 2",
            "more": "any",
            "by_name": "any",
        },
        "START": None,
        "floor": {"x": "required, number 1"},
    }


def test_the_faces_of_the_packages_have_their_names() -> None:
    assert face_of("armwise.feedback.ope").keys() >= {"ips", "snips", "dr", "evaluate_arrays"}
    client = face_of("armwise.agent.client")
    assert client["Client.ask"] is not None
    assert client["Answer"] is None, "a reply may have further fields"
    assert client["Client.ask"]["question"] == "required, number 2"
