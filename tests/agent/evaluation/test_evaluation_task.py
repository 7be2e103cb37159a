"""An evaluation in a process of its own: it gives way to all others, and outlives nobody."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from armwise.agent.config import AppConfig, parse
from armwise.agent.evaluation.evaluation_task import (
    Evaluations,
    _conclude,
    answer,
    evaluate_apart,
    evaluate_here,
)
from armwise.agent.jobs import JobFailedError, ProgressCallback, StoppedError
from armwise.agent.learning import digest_configuration
from armwise.agent.low_priority import BUILDER_NICE
from armwise.feedback.errors import LogUnavailableError
from armwise.feedback.log import Store
from armwise.feedback.registry import evaluations
from tests.agent.fakes import CONFIG
from tests.agent.judged import judged_log

ROOT = Path(__file__).parents[3]
REQUEST: Mapping[str, Any] = {"candidates": ["uniform", "fixed:bm25"], "gate": True}
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> AppConfig:
    """Of a log in which some turns were judged."""
    config = parse({**CONFIG, "log_url": f"sqlite:///{tmp_path_factory.mktemp('log') / 'log.db'}"})
    judged_log(config, turns=60)
    return config


def children() -> list[psutil.Process]:
    """The evaluations that run in processes of their own; those of another test may just end."""
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):  # which a zombie is, too
            if "armwise.agent.evaluation.evaluation_task" in " ".join(child.cmdline()):
                found.append(child)
    return found


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def until(seen: Callable[[], object]) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not seen():
        assert time.monotonic() < give_up
        time.sleep(0.01)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The parent looks so often that the child is still loading when it does."""
    monkeypatch.setattr("armwise.agent.evaluation.evaluation_task.POLL_S", 0.01)
    yield
    assert children() == []


def flat(document: object, place: str = "") -> dict[str, object]:
    """The values of a document by their places."""
    if isinstance(document, dict | list):
        parts = document.items() if isinstance(document, dict) else enumerate(document)
        return {k: v for key, part in parts for k, v in flat(part, f"{place}/{key}").items()}
    return {place: document}


@pytest.mark.slow
def test_a_process_of_its_own_gives_the_same_report(
    config: AppConfig,
) -> None:
    told: list[float] = []
    apart = evaluate_apart(config, REQUEST, told.append)
    here = evaluate_here(config, REQUEST, lambda _done: None)
    one, other = flat({**apart.report, "made_at": 0.0}), flat({**here.report, "made_at": 0.0})
    assert one.keys() == other.keys()
    for place, value in other.items():
        near = pytest.approx(value, rel=1e-9, abs=1e-12) if isinstance(value, float) else value
        assert one[place] == near, place  # the child adds up in one thread
    assert [one["name"] for one in apart.report["candidates"]] == ["served", "uniform", "fixed:bm25"]
    assert "fixed:bm25" in apart.html
    assert told == sorted(told)
    assert 0.0 < told[-1] < 1.0
    assert children() == []


def test_what_cannot_be_evaluated_is_told_in_words(tmp_path: Path) -> None:
    config = parse({**CONFIG, "log_url": f"sqlite:///{tmp_path / 'log.db'}"})
    with pytest.raises(JobFailedError, match="the training log is empty"):
        evaluate_here(config, REQUEST, lambda _done: None)


@pytest.mark.parametrize(
    ("candidate", "refusal"),
    [
        ("policy:{kind: neural, params: {encoder: /etc}}", "encoder '/etc' may name a file"),
        (
            "policy:{kind: vowpal, params: {args: '--cb_explore_adf -p out'}}",
            "vw argument '-p' is not allowed",
        ),
        ("router:/etc", "only the configured router"),
    ],
)
def test_a_logged_request_names_no_files(config: AppConfig, candidate: str, refusal: str) -> None:
    with pytest.raises(JobFailedError, match=refusal):
        evaluate_here(config, {"candidates": [candidate]}, lambda _done: None)


@pytest.mark.parametrize(
    ("request_", "refusal"),
    [
        ({"until": "9999-12-31T23:59:59-23:59"}, "until: .*up to the year 9999 in UTC"),
        ({"since": "0001-01-01T00:00:00+23:59"}, "since: .*up to the year 9999 in UTC"),
        ({"until": [1]}, "until: .* is not a date"),
        ({"candidate": ["uniform"]}, "unknown key 'candidate'"),
        ({"candidates": ["uniform"], "seed": "x"}, "seed: "),
    ],
)
@pytest.mark.slow
def test_a_row_that_no_client_could_submit_fails_in_words_and_the_next_one_is_run(
    config: AppConfig, request_: dict[str, Any], refusal: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(config.database_url, config.reward.join)
    digest = digest_configuration(config)
    rows = [evaluations.submit(store, digest, request, 1.0) for request in (request_, REQUEST)]
    task = Evaluations(store, digest, "w", partial(evaluate_here, config))
    for _ in range(2):
        assert task.due(2.0)
        task.run(threading.Event())
    failed, done = (evaluations.find(store, row.seq) for row in rows)
    assert failed is not None
    assert re.search(refusal, failed.error or "")
    assert done is not None
    assert (failed.status, done.status) == (
        evaluations.EvaluationStatus.FAILED,
        evaluations.EvaluationStatus.DONE,
    )
    assert not [one for one in caplog.records if one.exc_info], "a traceback"
    store.close()


@pytest.mark.parametrize(
    ("raised", "seen"),
    [
        (JobFailedError("nothing is there"), JobFailedError("nothing is there")),
        (LogUnavailableError("the disk is full"), LogUnavailableError("the disk is full")),
        (KeyError("arm"), JobFailedError("KeyError: 'arm'")),
    ],
    ids=["failed", "away", "bug"],
)
def test_an_error_of_the_child_is_one_of_the_parent(
    config: AppConfig, monkeypatch: pytest.MonkeyPatch, raised: Exception, seen: Exception
) -> None:
    def evaluate(
        given: AppConfig, request: Mapping[str, Any], heard: ProgressCallback
    ) -> evaluations.StoredResult:
        assert (given, request) == (config, REQUEST)
        heard(0.5)
        raise raised

    monkeypatch.setattr("armwise.agent.evaluation.evaluation_task.evaluate_here", evaluate)
    told: list[dict[str, Any]] = []
    answer({"config": config.model_dump(mode="json"), "request": REQUEST}, told.append)
    progress, outcome = told
    assert progress == {"done": 0.5}
    with pytest.raises(type(seen), match=f"^{seen}$"):
        _conclude(outcome, 0)


@pytest.mark.usefixtures("often")
def test_whoever_gives_up_leaves_no_process_behind(config: AppConfig) -> None:
    def heard(_done: float) -> None:
        raise StoppedError

    with pytest.raises(StoppedError):
        evaluate_apart(config, REQUEST, heard)


@pytest.mark.usefixtures("often")
def test_a_process_that_is_killed_is_an_evaluation_that_failed(config: AppConfig) -> None:
    def heard(_done: float) -> None:
        for child in children():
            child.kill()

    with pytest.raises(JobFailedError, match="the process of the evaluation ended with signal 9"):
        evaluate_apart(config, REQUEST, heard)


@pytest.mark.usefixtures("often")
def test_the_process_gives_way_to_all_others(config: AppConfig) -> None:
    seen = []

    def heard(_done: float) -> None:
        (child,) = children()
        if Path(f"/proc/{child.pid}/oom_score_adj").read_text() == "1000\n":  # which it says last
            seen.append((child.nice(), os.sched_getaffinity(child.pid)))
            raise StoppedError

    with pytest.raises(StoppedError):
        evaluate_apart(config, REQUEST, heard)
    assert seen == [(BUILDER_NICE, {max(os.sched_getaffinity(0))})]


@pytest.mark.slow
def test_the_process_ends_with_whoever_started_it(config: AppConfig, tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        "import sys\n"
        "from armwise.agent.evaluation import evaluation_task\n"
        "from armwise.agent.config import AppConfig\n"
        "config = AppConfig.model_validate_json(sys.argv[1])\n"
        "evaluation_task.POLL_S = 0.01\n"
        "evaluation_task.evaluate_apart(config, {}, lambda done: print(flush=True))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(script), config.model_dump_json()]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()  # it waits for its child
        (child,) = psutil.Process(parent.pid).children()
        os.kill(parent.pid, signal.SIGKILL)
        until(lambda: gone(child.pid))
