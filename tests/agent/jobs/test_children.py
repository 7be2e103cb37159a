"""Child processes: what they inherit, and that their priority is lowered before heavy imports."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from armwise.agent import low_priority
from armwise.agent.low_priority import environment_of_a_child


def test_a_child_inherits_modules_and_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OF_THE_USER", "kept")
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    monkeypatch.setattr(sys, "path", ["/first", "", "/second"])
    found = environment_of_a_child()
    assert found["OF_THE_USER"] == "kept"
    assert found["PYTHONPATH"] == f"/first{os.pathsep}/second"
    threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    assert [found[name] for name in threads] == ["1"] * 3


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.slow
def test_a_child_runs_nothing_of_the_current_folder_unless_the_user_names_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, named: bool
) -> None:
    """`sitecustomize` is imported by every interpreter that finds it."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("from pathlib import Path\nPath('ran').touch()\n")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", ["", str(folder), ".", *sys.path])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", str(folder)] if named else [""]))
    command = low_priority.command_of_a_child("json", "loads", "1")
    ended = subprocess.run(command, env=environment_of_a_child(), check=False, capture_output=True)
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert (folder / "ran").exists() is named


def test_a_child_starts_in_a_removed_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    monkeypatch.setattr(sys, "path", ["/first"])
    assert environment_of_a_child()["PYTHONPATH"] == "/first"


@pytest.mark.parametrize("lowered", ["lower_priority", "lower_priority_of_a_builder"])
def test_a_child_lowers_its_priority_first(monkeypatch: pytest.MonkeyPatch, lowered: str) -> None:
    done = list[object]()

    class Late:
        """A module whose function is looked up when it is imported from."""

        @property
        def work(self) -> object:
            done.append("imported")
            return lambda *words: done.append(words)

    def lower() -> None:
        done.append("lowered")

    lower.__name__ = lowered
    monkeypatch.setattr(low_priority, lowered, lower)
    monkeypatch.setitem(sys.modules, "heavy", Late())  # type: ignore[arg-type]
    command = low_priority.command_of_a_child("heavy", "work", "a", "b", lower=lower)
    program, *flags, script, first, second = command
    assert (program, flags) == (sys.executable, ["-P", "-c"])
    words = [first, second]
    monkeypatch.setattr(sys, "argv", ["-c", *words])
    exec(script, {})
    assert done == ["lowered", "imported", ("a", "b")]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this platform has no affinity")
def test_a_child_keeps_to_the_last_of_its_processors_and_is_killed_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    taken = list[object]()
    monkeypatch.setattr(
        low_priority,
        "os",
        SimpleNamespace(
            nice=taken.append,
            sched_getaffinity=lambda _: {5, 0, 2},
            sched_setaffinity=lambda *process: taken.append(process),
            getsid=lambda _: 1,
            getpid=lambda: 2,
        ),
    )
    monkeypatch.setattr(low_priority, "Path", lambda _: tmp_path / "oom_score_adj")
    low_priority.lower_priority()
    assert taken == [low_priority.BUILDER_NICE, (0, {5})]
    assert (tmp_path / "oom_score_adj").read_text() == "1000"


def test_a_builder_has_a_third_of_the_share(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    taken: list[object] = []
    alone = SimpleNamespace(nice=taken.append, getsid=lambda _: 2, getpid=lambda: 2)
    monkeypatch.setattr(low_priority, "os", alone)
    monkeypatch.setattr(low_priority, "Path", lambda _: tmp_path / "autogroup")
    low_priority.lower_priority_of_a_builder()
    assert taken == [5]
    assert (tmp_path / "autogroup").read_text() == "5"
