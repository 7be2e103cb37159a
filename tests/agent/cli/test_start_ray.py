"""What `armwise serve` says of deployments that fail, and how it ends."""

import logging
import os
import re
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray import serve
from ray.serve.schema import ApplicationStatus, ApplicationStatusOverview, DeploymentStatusOverview
from ray.serve.schema import DeploymentStatus as Status
from ray.serve.schema import DeploymentStatusTrigger as Trigger

from armwise.agent import run_folder
from armwise.agent.background import read_failures
from armwise.agent.cli import start_ray
from armwise.agent.cli.start_ray import DeploymentWatch, Problem, problems
from armwise.agent.run_folder import CONFIG_FOLDER, RAY_ENDS, RAY_STARTED, RUN_FOLDER
from armwise.arms import local_ray

TRACEBACK = """The deployment failed to start 3 times in a row.
Traceback (most recent call last):
  File "arms/retrievers/bm25.py", line 214, in load
ValueError: mmap length is greater than file size
"""


def application(
    status: ApplicationStatus, message: str = "", **deployments: tuple[Status, str]
) -> dict[str, ApplicationStatusOverview]:
    """Return one application as `serve.status()` does."""
    of = {
        name: DeploymentStatusOverview(state, Trigger.UNSPECIFIED, {}, said)
        for name, (state, said) in deployments.items()
    }
    return {"armwise": ApplicationStatusOverview(status, message, 0.0, of)}


def test_a_deployment_that_was_given_up_is_named_with_the_error_of_its_constructor() -> None:
    both = application(
        ApplicationStatus.DEPLOY_FAILED,
        "The deployments ['Arms'] have failed.",
        Learner=(Status.HEALTHY, ""),
        Ingress=(Status.UNHEALTHY, "no replica"),
        Arms=(Status.DEPLOY_FAILED, TRACEBACK),
    )
    found = list(problems(both))
    assert [str(one) for one in found] == [
        "deployment Arms has failed for good: ValueError: mmap length is greater than file size",
        "deployment Ingress is unhealthy: no replica",
    ]
    assert [one.for_good for one in found] == [True, False]
    assert "line 214" in found[0].message, "the whole traceback is printed before"


def test_an_application_that_cannot_be_built_is_named_once() -> None:
    (problem,) = problems(application(ApplicationStatus.DEPLOY_FAILED, "ConfigError: floor 2 is too large"))
    assert problem == Problem(
        "the application cannot be deployed", "ConfigError: floor 2 is too large", for_good=True
    )


def test_deployments_that_start_or_run_are_no_problem() -> None:
    states = {"Arms": (Status.UPDATING, "starting"), "Ingress": (Status.HEALTHY, "")}
    for status in (ApplicationStatus.DEPLOYING, ApplicationStatus.RUNNING, ApplicationStatus.DELETING):
        assert list(problems(application(status, "fine", **states))) == []


def test_each_problem_is_printed_once_and_the_main_thread_is_interrupted_at_the_last(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unhealthy = application(ApplicationStatus.UNHEALTHY, Arms=(Status.UNHEALTHY, "no replica"))
    failed = application(ApplicationStatus.DEPLOY_FAILED, Arms=(Status.DEPLOY_FAILED, TRACEBACK))
    well = application(ApplicationStatus.RUNNING, Arms=(Status.HEALTHY, ""))
    looks = iter([unhealthy, unhealthy, well, unhealthy, None, failed])

    def status() -> object:
        if (found := next(looks)) is None:
            raise RuntimeError("the controller starts")
        return type("Status", (), {"applications": found})

    ended = iter([False, True, *[False] * 4])
    sent: list[tuple[int, signal.Signals]] = []
    initialized = iter([False, *[True] * 6])
    monkeypatch.setattr("ray.is_initialized", lambda: next(initialized))
    monkeypatch.setattr(serve, "status", status)
    monkeypatch.setattr(start_ray, "LOOK_S", 0.0)
    monkeypatch.setattr(local_ray, "start_log_monitor_again", lambda: next(ended))
    monkeypatch.setattr(signal, "pthread_kill", lambda thread, number: sent.append((thread, number)))
    watch = DeploymentWatch()
    watch.run()
    assert sent == [(threading.main_thread().ident, signal.SIGINT)]
    assert [one.for_good for one in watch.given_up] == [True]
    printed = capsys.readouterr().err
    assert printed.count("deployment Arms is unhealthy: no replica") == 2
    assert printed.count("line 214") == 1
    assert printed.count("Ray's log monitor had ended, and was started again") == 1


def test_what_is_unhealthy_is_on_record_until_all_is_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RUN_FOLDER, str(tmp_path))
    one, other = (Problem(f"deployment {name} is unhealthy", "no replica", False) for name in ("A", "B"))
    watch, seen = DeploymentWatch(), list[list[tuple[str, int]]]()
    for there in ([one], [one], [one, other], [other], [], [one]):
        watch._report(there)  # noqa: SLF001 - what `run` does with a look
        seen.append([(failure.why, failure.attempts) for failure in read_failures()])
    both = f"{one}; {other}"
    assert seen == [[(str(one), 1)], [(str(one), 1)], [(both, 2)], [(str(other), 2)], [], [(str(one), 1)]]


class Looked:
    """A watch that has found what a test says."""

    given_up: list[Problem] = []  # noqa: RUF012 - set by the test

    def start(self) -> None: ...


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """How Ray was started, and what was run on it instead of both."""
    seen: dict[str, Any] = {"ends": None}

    def run(words: list[str], **options: Any) -> None:
        seen["words"], seen["options"] = words, options
        seen["environment"] = dict(os.environ)
        if seen["ends"] is not None:
            raise seen["ends"]

    for name in (*start_ray.SERVE, "RAY_ADDRESS", RUN_FOLDER):
        monkeypatch.setenv(name, "")  # so that it is as before afterwards
        monkeypatch.delenv(name)
    monkeypatch.setattr(
        "armwise.arms.local_ray.start", lambda folder, **options: seen.update(ray=(folder, options))
    )
    monkeypatch.setattr("ray.serve.scripts.cli", run)
    monkeypatch.setattr(start_ray, "DeploymentWatch", Looked)
    monkeypatch.setattr(Looked, "given_up", [])
    return seen


@pytest.mark.parametrize("in_folder", [False, True])
def test_a_configuration_is_run_on_a_ray_of_its_own_in_the_folder_of_the_run(
    begun: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, in_folder: bool
) -> None:
    folder = str(tmp_path) if in_folder else None
    if folder is not None:
        monkeypatch.setenv(RUN_FOLDER, folder)
    monkeypatch.setenv("RAY_SERVE_THROUGHPUT_OPTIMIZED", "0")
    assert start_ray.main("config.yaml") == 0
    options = {"namespace": "serve", "object_store_memory": 268_435_456, "logging_level": logging.WARNING}
    assert begun["ray"] == (folder and Path(folder), options)
    assert (begun["words"], begun["options"]) == (
        ["run", "--app-dir", os.devnull, "config.yaml"],
        {"standalone_mode": False},
    )
    assert (tmp_path / RAY_STARTED).exists() == in_folder, "its parent watches its processes from then on"
    assert (tmp_path / RAY_ENDS).exists() == in_folder, "and no more now"
    environment = begun["environment"]
    assert environment["RAY_SERVE_THROUGHPUT_OPTIMIZED"] == "0", "what the user has set stays"
    assert environment["RAY_SERVE_ENABLE_DIRECT_INGRESS"] == "0"


@pytest.mark.parametrize(("line", "runs"), [("prepared\n", True), ("", False), ("prepared", False)])
def test_a_configuration_is_run_once_all_is_prepared(begun: dict[str, Any], line: str, runs: bool) -> None:
    order = list[bool]()

    def prepared() -> bool:
        order.append("ray" in begun)
        return line == run_folder.GO_ON

    assert start_ray.main("config.yaml", prepared) == 0
    assert order == [True], "Ray starts meanwhile"
    assert ("words" in begun) == runs


def test_a_ray_that_cannot_be_started_ends_it_with_one_line(
    begun: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def start(*_: object, **__: object) -> None:
        raise local_ray.RayNotStartedError("this machine is too busy")

    monkeypatch.setattr("armwise.arms.local_ray.start", start)
    assert start_ray.main("config.yaml") == 1
    assert "words" not in begun
    assert capsys.readouterr().err.splitlines() == ["this machine is too busy"]


def test_ctrl_c_before_there_is_anything_to_run_prints_no_traceback(begun: dict[str, Any]) -> None:
    def prepared() -> bool:
        raise KeyboardInterrupt

    assert start_ray.main("config.yaml", prepared) == 130
    assert "words" not in begun


def test_the_cluster_that_is_named_is_used_with_the_variables_of_ray_serve(
    begun: dict[str, Any], config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined: list[dict[str, Any]] = []
    monkeypatch.setattr("armwise.arms.local_ray.connect", lambda **options: joined.append(options))
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    monkeypatch.setenv(CONFIG_FOLDER, str(config.parent))
    assert start_ray.main(str(config)) == 0
    assert "ray" not in begun
    assert joined == [{"namespace": "serve", "logging_level": logging.WARNING}]
    assert begun["environment"]["RAY_SERVE_THROUGHPUT_OPTIMIZED"] == "1"
    skipped = begun["environment"]["RAY_DEDUP_LOGS_SKIP_REGEX"]
    assert re.search(skipped, "(ServeController pid=1) ServeController.graceful_shutdown failed: again")


@pytest.mark.parametrize(
    ("ends", "code"),
    [(None, 0), (SystemExit(), 0), (SystemExit(2), 2), (SystemExit("interrupted"), 0)],
)
def test_the_exit_code_is_that_of_ray_serve(
    begun: dict[str, Any], ends: SystemExit | None, code: int
) -> None:
    begun["ends"] = ends
    assert start_ray.main("config.yaml") == code


@pytest.mark.parametrize("ends", [None, SystemExit(1), SystemExit(0)])
def test_what_ray_serve_has_given_up_is_named_last_and_is_the_exit_code_3(
    begun: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    ends: SystemExit | None,
) -> None:
    begun["ends"] = ends
    monkeypatch.setenv(RUN_FOLDER, str(tmp_path))
    gone = [Problem(f"deployment {name} has failed for good", TRACEBACK, True) for name in ("Arms", "Jobs")]
    monkeypatch.setattr(Looked, "given_up", gone)
    assert start_ray.main("config.yaml") == 3
    assert capsys.readouterr().err.splitlines() == [str(one) for one in gone]
    assert (tmp_path / RAY_ENDS).exists(), "the processes that end with it are not missed"


# -- the folder of the configuration -----------------------------------------------------------------


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    runtime = {"env_vars": {"MINE": "1"}}
    path.write_text(yaml.safe_dump({"applications": [{"args": {"home": "home"}, "runtime_env": runtime}]}))
    return path


def test_a_cluster_is_told_the_folder_of_the_configuration(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "ray.internal:6379")
    monkeypatch.setenv(CONFIG_FOLDER, "/srv/project")
    with start_ray.for_cluster(str(config)) as path:
        (application,) = yaml.safe_load(Path(path).read_text())["applications"]
    assert application["runtime_env"]["env_vars"] == {CONFIG_FOLDER: "/srv/project", "MINE": "1"}
    assert application["args"] == {"home": "home"}
    assert not Path(path).exists()


def test_a_ray_of_this_machine_runs_the_configuration_itself(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with start_ray.for_cluster(str(config)) as path:
        assert path == str(config)
