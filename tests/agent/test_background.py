"""Work in the background that fails: it is on record until it succeeds."""

import os
from pathlib import Path

import pytest

from armwise.agent.background import Work, WorkFailure, clear, read_failures, record
from armwise.agent.run_folder import RUN_FOLDER

NOW = 1000.0


@pytest.fixture(autouse=True)
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run."""
    monkeypatch.setenv(RUN_FOLDER, str(tmp_path))
    return tmp_path


def failure(why: str, attempts: int, next_at: float | None) -> WorkFailure:
    return WorkFailure(Work.FIRST_START, why, attempts, next_at)


def test_failures_of_other_works_stand_side_by_side(run: Path) -> None:
    one = failure("a", 1, None)
    other = WorkFailure(Work.CANARY, "b", 2, NOW)
    for each in (one, other):
        record(each)
    assert read_failures() == [one, other]
    clear(Work.CANARY)
    assert read_failures() == [one]
    assert not [path for path in (run / "failed").iterdir() if path.suffix != ".json"], "written as a whole"


def test_a_failure_that_cannot_be_written_is_logged(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    (run / "failed").write_text("no folder")
    record(failure("the disk is full", 1, None))
    (said,) = (one.getMessage() for one in caplog.records)
    assert "the disk is full" in said
    assert "it cannot be recorded" in said


@pytest.mark.usefixtures("run")
def test_a_failure_whose_words_are_no_text_is_recorded() -> None:
    record(failure(os.fsdecode(b"caf\xe9.txt cannot be read"), 1, None))
    (found,) = read_failures()
    assert "cannot be read" in found.why


def test_without_a_run_folder_nothing_is_written(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RUN_FOLDER)
    record(failure("full", 1, None))
    assert (read_failures(), list(run.iterdir())) == ([], [])
