"""Work in the background that fails: it is tried again a few times, and is on record until it succeeds."""

import os
from pathlib import Path

import pytest

from armwise.agent.background import PAUSES_S, Work, WorkFailure, clear, read_failures, record, retry
from armwise.agent.run_folder import RUN_FOLDER

NOW = 1000.0


@pytest.fixture(autouse=True)
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run."""
    monkeypatch.setenv(RUN_FOLDER, str(tmp_path))
    return tmp_path


class Attempts:
    """Does a work that fails with each of some errors in turn, and remembers what is on record meanwhile.

    Attributes:
        seen: What was on record in each pause.
        waited_s: The pauses.
    """

    def __init__(self, *errors: Exception) -> None:
        self._errors = iter(errors)
        self.seen: list[list[WorkFailure]] = []
        self.waited_s: list[float] = []

    def do(self) -> str:
        for error in self._errors:
            raise error
        return "done"

    def wait(self, seconds: float) -> None:
        self.seen.append(read_failures())
        self.waited_s.append(seconds)

    def retried(self) -> str:
        return retry(
            Work.FIRST_START,
            self.do,
            wait=self.wait,
            final=lambda error: isinstance(error, KeyError),
            clock=lambda: NOW,
        )


def failure(why: str, attempts: int, next_at: float | None) -> WorkFailure:
    return WorkFailure(Work.FIRST_START, why, attempts, next_at)


def test_what_fails_once_is_done_after_a_pause_in_which_the_failure_stands() -> None:
    work = Attempts(OSError("the disk is full"))
    assert work.retried() == "done"
    assert work.waited_s == [PAUSES_S[0]]
    assert work.seen == [[failure("the disk is full", 1, NOW + PAUSES_S[0])]]
    assert read_failures() == []


def test_what_fails_at_every_attempt_is_given_up_and_the_failure_stays() -> None:
    work = Attempts(TimeoutError(), OSError("full"), OSError("full still"))
    with pytest.raises(OSError, match="full still"):
        work.retried()
    assert work.waited_s == list(PAUSES_S), "longer and longer"
    assert work.seen[0][0].why == "TimeoutError", "an error without a message has its type"
    assert read_failures() == [failure("full still", 3, None)]
    assert "failed 3 times; given up" in str(read_failures()[0])
    assert Attempts().retried() == "done"
    assert read_failures() == [], "until it succeeds"


def test_an_outcome_that_another_attempt_would_not_change_is_no_failure() -> None:
    work = Attempts(KeyError("arm"))
    with pytest.raises(KeyError):
        work.retried()
    assert (work.waited_s, read_failures()) == ([], [])


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
    work = Attempts(OSError("full"))
    assert work.retried() == "done"
    assert (work.seen, list(run.iterdir())) == ([[]], [])
