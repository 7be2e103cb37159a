"""Parts of a service in one process: one that fails is opened again, and the others go on."""

import logging
import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from armwise.agent.config import parse
from armwise.agent.hosts import single_process
from armwise.agent.hosts.single_process import LONGEST_PAUSE_S, PAUSE_S, Reopened, open_generators
from armwise.arms.deployments import LateGenerator, generator_host
from tests.agent.fakes import CONFIG


class Part:
    """Fails at a check, or when it is opened."""

    opened = 0

    def __init__(self, fails: bool = False) -> None:
        type(self).opened += 1
        self.well = True
        if fails:
            raise OSError("the log is gone")

    def check_health(self) -> None:
        if not self.well:
            raise ValueError("no longer")


def test_a_part_that_fails_is_opened_again_after_a_pause(caplog: pytest.LogCaptureFixture) -> None:
    now, parts = [0.0], list[Part]()

    def make() -> Part:
        parts.append(Part())
        return parts[-1]

    part = Reopened("the learner", make, lambda: now[0])
    assert parts == []
    for _ in range(3):
        part.check()
    assert len(parts) == 1
    parts[0].well = False
    with caplog.at_level(logging.ERROR):
        part.check()
    assert "the learner failed; it is opened again in 1 s" in caplog.text
    now[0] = PAUSE_S - 0.01
    part.check()
    assert len(parts) == 1
    now[0] = PAUSE_S
    part.check()
    part.check()
    assert len(parts) == 2


class Starting:
    """A replica that is ready at its third look; Ctrl-C is pressed at the fifth."""

    def __init__(self) -> None:
        self.ready, self.looks = False, 0

    def check(self) -> None:
        self.looks += 1
        self.ready = self.looks >= 3
        if self.looks == 5:
            signal.raise_signal(signal.SIGINT)


async def test_what_runs_jobs_is_opened_once_questions_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica, opened = Starting(), list[tuple[str, int]]()

    def part(name: str) -> Reopened:
        return Reopened(name, lambda: opened.append((name, replica.looks)) or Part())

    parts = replica, part("learner"), part("jobs")
    monkeypatch.setattr(single_process, "open_parts", lambda *_: parts)
    monkeypatch.setattr(single_process, "create_app", lambda _: FastAPI())
    monkeypatch.setattr(single_process, "LOOK_S", 0.01)
    await single_process.serve(parse(CONFIG), tmp_path)
    assert (opened, replica.looks) == ([("learner", 1), ("jobs", 3)], 5)


def test_the_pause_of_a_part_doubles_up_to_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Part, "opened", 0)
    now, tried_at = [0.0], list[float]()

    def make() -> Part:
        tried_at.append(now[0])
        return Part(fails=True)

    part = Reopened("what runs jobs", make, lambda: now[0])
    while len(tried_at) < 9:
        part.check()
        now[0] += 0.5
    pauses = [after - before for before, after in pairwise(tried_at)]
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, LONGEST_PAUSE_S, LONGEST_PAUSE_S]


def test_the_pause_is_short_again_after_a_minute_without_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    now, parts = [0.0], list[Part]()

    def make() -> Part:
        parts.append(Part())
        return parts[-1]

    part = Reopened("the learner", make, lambda: now[0])

    def fail_after(seconds: float) -> str:
        caplog.clear()
        part.check()
        now[0] += seconds
        part.check()
        parts[-1].well = False
        part.check()
        now[0] += LONGEST_PAUSE_S
        return caplog.text.partition(" in ")[2].partition("\n")[0]

    pauses = [fail_after(seconds) for seconds in (1.0, 1.0, LONGEST_PAUSE_S, LONGEST_PAUSE_S + 0.1, 1.0)]
    assert pauses == ["1 s", "2 s", "4 s", "1 s", "2 s"]


@pytest.mark.parametrize(
    ("own", "late"),
    [
        ({}, {"default", "judge"}),
        ({"rrf": {"llm": "judge"}}, {"default"}),
    ],
)
def test_a_model_whose_passages_are_quoted_is_loaded_with_its_first_answer(
    own: dict[str, Any], late: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = list[str]()
    monkeypatch.setattr(generator_host, "build_generator", lambda spec: loaded.append(spec.model))
    arms = {"bm25": {"kind": "bm25"}, "dense": {"kind": "bm25"}, "rrf": {"kind": "bm25"}}
    config = parse(
        {
            "arms": {name: {**arm, "answering": own.get(name, {})} for name, arm in arms.items()},
            "reward": {"metrics": {"thumb": {}}},
            "answering": {"quote": True},
            "llm": {"engine": "embedded", "model": "/default.gguf"},
            "llms": {"judge": {"engine": "embedded", "model": "/judge.gguf"}},
        }
    )
    generators = open_generators(config)
    assert {name for name, one in generators.items() if isinstance(one, LateGenerator)} == late
    assert loaded == [f"/{name}.gguf" for name in generators if name not in late]
