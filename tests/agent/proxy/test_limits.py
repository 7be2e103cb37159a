"""How many files and connections a process may have."""

import resource
from math import inf
from pathlib import Path

import pytest

from armwise.agent.config import parse
from armwise.agent.proxy import Listening, most_connections, raise_limit_of_files, write_configuration
from armwise.agent.proxy.limits import ENOUGH_FILES
from tests.agent.fakes import CONFIG

NONE = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("hard", "expected"), [(1024, 412), (200, 0), (10, 0), (NONE, inf), (8392, 4096), (8391, 4095)]
)
def test_a_connection_is_two_files(monkeypatch: pytest.MonkeyPatch, hard: int, expected: float) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, hard))
    assert most_connections() == expected


@pytest.mark.parametrize(
    ("soft", "hard", "expected"),
    [
        (1024, 4096, (4096, 4096)),
        (1024, NONE, (ENOUGH_FILES, NONE)),
        (1024, 10 * ENOUGH_FILES, (ENOUGH_FILES, 10 * ENOUGH_FILES)),
        (4096, 4096, None),
        (ENOUGH_FILES + 1, NONE, None),
        (NONE, NONE, None),
    ],
)
def test_the_soft_limit_is_raised_as_far_as_it_may_be_and_never_lowered(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, expected: tuple[int, int] | None
) -> None:
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limit: limits.append(limit))
    raise_limit_of_files()
    assert limits == ([] if expected is None else [expected])


@pytest.mark.parametrize(("hard", "expected"), [(1024, 412), (NONE, 4096), (9000, 4096)])
def test_haproxy_accepts_no_more_connections_than_it_may_hold(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, hard: int, expected: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, hard))
    path = write_configuration(parse(CONFIG), Listening("127.0.0.1", 8000, tmp_path))
    lines = path.read_text(encoding="ascii").split("\n")
    assert f"    maxconn {expected}" in lines
    assert sum(f" gt {expected} }}" in line for line in lines) >= 1
