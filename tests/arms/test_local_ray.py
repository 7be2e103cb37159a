"""A Ray that starts late on a busy machine, and a cluster that is gone."""

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import ray

from armwise.arms import local_ray
from armwise.arms.local_ray import ATTEMPTS, TIMED_OUT, RayNotStartedError


class Starts:
    """Starts of Ray: what each raises, or None for one that succeeds."""

    def __init__(self, *errors: Exception | None) -> None:
        self._errors = iter(errors)
        self.options: list[dict[str, Any]] = []

    def __call__(self, **options: Any) -> None:
        self.options.append(options)
        if (error := next(self._errors)) is not None:
            raise error


LATE = Exception(f"The current node {TIMED_OUT}. This could happen because of anything.")


@pytest.fixture(autouse=True)
def _no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def begun(monkeypatch: pytest.MonkeyPatch, folder: Path, *errors: Exception | None) -> Starts:
    starts = Starts(*errors)
    monkeypatch.setattr(ray, "init", starts)
    local_ray.start(folder, num_cpus=1)
    return starts


@pytest.mark.parametrize("late", [0, 1, ATTEMPTS - 1])
def test_a_node_that_is_late_is_started_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, late: int
) -> None:
    starts = begun(monkeypatch, tmp_path, *[LATE] * late, None)
    assert len(starts.options) == late + 1
    assert {one["num_cpus"] for one in starts.options} == {1}
    for one in starts.options:
        one["job_config"]._py_driver_sys_path.extend(["/here"])  # as Ray does  # noqa: SLF001
        assert one["job_config"]._py_driver_sys_path == []  # noqa: SLF001


def test_what_a_late_node_has_left_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    left, other = (
        subprocess.Popen([sys.executable, "-c", "input()", folder], stdin=subprocess.PIPE)
        for folder in (f"--temp-dir={tmp_path}/ray", "elsewhere")
    )
    begun(monkeypatch, tmp_path, LATE, None)
    left.wait(30)
    assert other.poll() is None
    other.communicate(b"\n")


def test_a_node_that_never_starts_is_said_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(
        RayNotStartedError, match=r"^Ray did not start in 3 attempts of 30 s: [^\n]*less busy$"
    ):
        begun(monkeypatch, tmp_path, *[LATE] * ATTEMPTS)


def test_another_failure_is_not_tried_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no space left"):
        begun(monkeypatch, tmp_path, OSError("no space left"), None)


def test_a_cluster_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert local_ray.cluster_problem(address) is None
    monkeypatch.setenv("RAY_ADDRESS", address)
    starts = Starts()
    monkeypatch.setattr(ray, "init", starts)
    with pytest.raises(
        RayNotStartedError, match=f"no cluster answers at RAY_ADDRESS={address}.*unset RAY_ADDRESS"
    ):
        local_ray.connect(namespace="serve")
    assert starts.options == []


def test_workers_of_a_cluster_do_not_get_the_driver_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    starts = Starts(None)
    monkeypatch.setattr(ray, "init", starts)
    local_ray.connect(namespace="serve")
    (options,) = starts.options
    assert options["namespace"] == "serve"
    options["job_config"]._py_driver_sys_path.extend(["/here"])  # noqa: SLF001
    assert options["job_config"]._py_driver_sys_path == []  # noqa: SLF001
