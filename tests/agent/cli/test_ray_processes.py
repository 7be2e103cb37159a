"""Which absences of Ray's processes end a service, which are said, and which nobody notices."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from armwise.agent.background import Work, WorkFailure, read_failures
from armwise.agent.cli import ray_processes
from armwise.agent.cli.ray_processes import (
    ENDING_S,
    LOOK_S,
    MOST_S,
    PATIENCE_S,
    SAID_S,
    STARTED_AGAIN,
    STARTING_S,
    Absences,
    ProcessLostError,
    RayProcesses,
    Role,
    role_of_program,
)
from armwise.agent.run_folder import RAY_ENDS, RAY_STARTED, RUN_FOLDER

ALL = frozenset(Role)
OWN = [role for role in Role if role not in STARTED_AGAIN]


def absent(role: Role, seconds: float, step_s: float = 1.0) -> Absences:
    """Return absences after all were there, and then one was not for so many seconds."""
    absences, now = Absences(), 0.0
    absences.look(ALL, now)
    absences.look(ALL - {role}, now)
    while now < seconds:
        now = min(now + step_s, seconds)
        absences.look(ALL - {role}, now)
    return absences


# -- the decision ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", Role)
def test_a_process_is_lost_once_its_patience_has_passed_and_no_moment_earlier(role: Role) -> None:
    assert absent(role, PATIENCE_S[role] - 0.01).lost == []
    assert absent(role, PATIENCE_S[role]).lost == [role]
    assert absent(Role.INGRESS, SAID_S - 0.01).said == []
    assert absent(Role.INGRESS, SAID_S).said == [Role.INGRESS]


def test_what_was_never_there_is_not_missed_unless_it_is_expected_from_the_start() -> None:
    absences, expecting = Absences(), Absences([Role.RAYLET])
    for now in range(1000):
        absences.look((), now)
        expecting.look((), now)
    assert absences.missing_s == {}
    assert (list(expecting.missing_s), expecting.lost) == ([Role.RAYLET], [Role.RAYLET])


def test_a_process_that_is_back_has_not_been_missing() -> None:
    absences = absent(Role.INGRESS, PATIENCE_S[Role.INGRESS] - 1.0)
    absences.look(ALL, 299.5)
    absences.look(ALL - {Role.INGRESS}, 300.0)
    absences.look(ALL - {Role.INGRESS}, 301.0)
    assert absences.missing_s == {Role.INGRESS: 1.0}


def test_of_what_ray_starts_again_only_what_is_late_is_lost() -> None:
    absences = absent(Role.CONTROLLER, PATIENCE_S[Role.CONTROLLER] - 1.0)
    now = PATIENCE_S[Role.CONTROLLER]
    absences.look(ALL - {Role.CONTROLLER, Role.INGRESS}, now)
    assert absences.lost == [Role.CONTROLLER]
    assert absences.said == [Role.CONTROLLER]


def test_where_one_of_rays_own_is_lost_all_of_them_are_named_that_have_ended_and_no_others() -> None:
    absences = absent(Role.ENVIRONMENT_AGENT, PATIENCE_S[Role.RAYLET] - 1.0)
    there = ALL - {Role.ENVIRONMENT_AGENT, Role.RAYLET, Role.INGRESS, Role.CONTROLLER}
    absences.look(there, PATIENCE_S[Role.RAYLET])
    assert absences.lost == [Role.RAYLET, Role.ENVIRONMENT_AGENT]


@pytest.mark.parametrize("jump_s", [8 * 3600.0, -8 * 3600.0])
def test_a_clock_that_jumps_or_a_machine_that_was_suspended_ends_nothing_by_itself(jump_s: float) -> None:
    absences = absent(Role.INGRESS, 10.0)
    absences.look(ALL - {Role.INGRESS}, 10.0 + jump_s)
    counted = 10.0 + (MOST_S if jump_s > 0 else 0.0)
    assert absences.missing_s == {Role.INGRESS: counted}
    absences.look(ALL - {Role.INGRESS}, 11.0 + jump_s)
    assert absences.missing_s == {Role.INGRESS: counted + 1.0}


def test_a_parent_that_is_starved_counts_less_than_it_slept() -> None:
    assert absent(Role.CONTROLLER, 600.0, step_s=60.0).missing_s[Role.CONTROLLER] == 10 * MOST_S


@given(
    st.lists(st.tuples(st.sets(st.sampled_from(list(Role))), st.floats(-100.0, 1000.0)), max_size=40),
    st.sets(st.sampled_from(list(Role))),
)
def test_an_absence_is_never_longer_than_the_time_that_was_seen(
    looks: list[tuple[set[Role], float]], expected: set[Role]
) -> None:
    absences, now, seen_s, before = Absences(expected), 0.0, 0.0, set(expected)
    for number, (there, step_s) in enumerate(looks):
        now += step_s
        seen_s += min(max(step_s, 0.0), MOST_S) if number else 0.0
        before |= there
        absences.look(there, now)
        assert set(absences.missing_s) == before - there
        assert all(0.0 <= missing_s <= seen_s + 1e-6 for missing_s in absences.missing_s.values())
        assert set(absences.lost) <= set(absences.missing_s)


# -- who is who ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "role"),
    [
        ("/venv/lib/python3.12/site-packages/ray/core/src/ray/gcs/gcs_server", Role.CONTROL),
        ("/venv/ray/core/src/ray/raylet/raylet", Role.RAYLET),
        ("ray::DashboardAgent", Role.DASHBOARD_AGENT),
        ("ray::RuntimeEnvAgent", Role.ENVIRONMENT_AGENT),
        ("ray::ServeController", Role.CONTROLLER),
        ("ray::ServeController.listen_for_change", Role.CONTROLLER),
        ("ray::ServeReplica:armwise:Ingress", Role.INGRESS),
        ("ray::ServeReplica:of:theirs:Ingress.handle_request_with_rejection", Role.INGRESS),
        ("ray::ServeReplica:armwise:Learner", None),
        ("ray::ServeReplica:armwise:Ingress2", None),
        ("ray::ServeReplica:Ingress:Arms", None),
        ("ray::IDLE", None),
        ("/venv/ray/raylet/raylet_monitor", None),
        ("my_raylet", None),
        ("", None),
    ],
)
def test_a_process_is_known_by_what_it_calls_itself(program: str, role: Role | None) -> None:
    assert role_of_program(program) == role


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="the system cannot wait without taking the exit code")
def test_a_process_that_has_ended_and_was_not_waited_for_does_not_run() -> None:
    with subprocess.Popen(["sleep", "600"]) as child:
        process = psutil.Process(child.pid)
        assert ray_processes._runs(process)  # noqa: SLF001 - as children of others are seen
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert process.is_running()
        assert not ray_processes._runs(process)  # noqa: SLF001


# -- the processes ---------------------------------------------------------------------------------------

TREE = """
import signal, subprocess, sys, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that who is killed is gone
for title in sys.argv[2:]:
    subprocess.Popen([title, "600"], executable=sys.argv[1])
print("started", flush=True)
time.sleep(600)
"""

UNWAITED = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.argv[1], "600"])
child.kill()
os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
print("ended", flush=True)
time.sleep(600)
"""

TITLES = {
    Role.CONTROL: "/ray/gcs_server",
    Role.RAYLET: "/ray/raylet",
    Role.DASHBOARD_AGENT: "ray::DashboardAgent",
    Role.ENVIRONMENT_AGENT: "ray::RuntimeEnvAgent",
    Role.CONTROLLER: "ray::ServeController",
    Role.INGRESS: "ray::ServeReplica:armwise:Ingress",
}


@pytest.fixture
def starter() -> Iterator["subprocess.Popen[bytes]"]:
    """A process with a session of its own, below which all are that Ray has."""
    sleep = shutil.which("sleep")
    assert sleep is not None
    command = [sys.executable, "-c", TREE, sleep, *TITLES.values()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        yield process
        ray_processes.kill_session(process.pid)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run in which Ray has started."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv(RUN_FOLDER, str(tmp_path))
    (tmp_path / RAY_STARTED).touch()
    return tmp_path


class Clock:
    """A clock that goes on by a second with each look."""

    now = 0.0

    def __call__(self) -> float:
        self.now += LOOK_S
        return self.now


def kill(starter: "subprocess.Popen[bytes]", role: Role) -> None:
    """Kill a process, and return once it has ended."""
    children = psutil.Process(starter.pid).children(recursive=True)
    (victim,) = (child for child in children if child.cmdline()[:1] == [TITLES[role]])
    victim.kill()
    victim.wait(60)


def looked(ray: RayProcesses, times: int) -> None:
    for _ in range(times):
        assert ray.check() is None


@pytest.mark.parametrize("role", OWN)
@pytest.mark.slow
def test_a_service_without_a_process_that_nothing_starts_again_is_lost_with_a_line_and_nothing_stays(
    starter: "subprocess.Popen[bytes]", run: Path, role: Role
) -> None:
    ray = RayProcesses(starter, run, Clock())
    looked(ray, 3)
    members = psutil.Process(starter.pid).children(recursive=True)
    kill(starter, role)
    looked(ray, 2)
    with pytest.raises(ProcessLostError) as lost:
        looked(ray, 2)
    line = str(lost.value)
    assert "\n" not in line
    assert role in line
    assert "start it again" in line
    ray.end()
    _, left = psutil.wait_procs(members, timeout=30)
    assert [one for one in left if one.status() != psutil.STATUS_ZOMBIE] == []


def test_a_raylet_that_ends_while_ray_starts_is_lost(starter: "subprocess.Popen[bytes]", run: Path) -> None:
    (run / RAY_STARTED).unlink()
    ray = RayProcesses(starter, run, Clock())
    looked(ray, 3)
    kill(starter, Role.RAYLET)
    looked(ray, 2)
    with pytest.raises(ProcessLostError, match=r"without Ray's raylet \("):
        looked(ray, 2)


def test_a_start_in_which_all_have_ended_is_lost_soon(starter: "subprocess.Popen[bytes]", run: Path) -> None:
    (run / RAY_STARTED).unlink()
    ray = RayProcesses(starter, run, Clock())
    looked(ray, 1)
    for role in OWN:
        kill(starter, role)
    looked(ray, int(STARTING_S))
    with pytest.raises(ProcessLostError, match="gcs_server"):
        looked(ray, 1)


def test_a_control_service_that_ends_at_once_is_lost_soon(run: Path, tmp_path: Path) -> None:
    """Ray has not waited for it yet, and would only give up its start after 30 seconds."""
    (run / RAY_STARTED).unlink()
    sleep, program = shutil.which("sleep"), tmp_path / "gcs_server"
    assert sleep is not None
    shutil.copy(sleep, program)
    command = [sys.executable, "-c", UNWAITED, str(program)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as starter:
        assert starter.stdout is not None
        assert starter.stdout.readline() == b"ended\n"
        ray = RayProcesses(starter, run, Clock())
        looked(ray, int(STARTING_S))
        with pytest.raises(ProcessLostError, match="gcs_server"):
            looked(ray, 1)
        ray.end()


def test_while_ray_starts_it_may_end_all_its_processes_and_begin_anew(
    starter: "subprocess.Popen[bytes]", run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run / RAY_STARTED).unlink()
    ray, there = RayProcesses(starter, run, Clock()), set[Role]()
    monkeypatch.setattr(ray, "_there", lambda: there)
    for number in range(3):
        there |= {Role.CONTROL}
        ray._seen[Role.CONTROL] = [SimpleNamespace(pid=number)]  # noqa: SLF001 - another process
        looked(ray, 40)
        there |= set(OWN)
        looked(ray, 10)
        there.clear()
        ray._seen.clear()  # noqa: SLF001
        looked(ray, 20)
    there |= set(OWN)
    (run / RAY_STARTED).touch()
    looked(ray, 2)
    there.remove(Role.CONTROL)
    with pytest.raises(ProcessLostError, match="gcs_server"):
        looked(ray, 4)


def test_an_end_in_order_that_does_not_come_is_missed(starter: "subprocess.Popen[bytes]", run: Path) -> None:
    ray = RayProcesses(starter, run, Clock())
    looked(ray, 3)
    (run / RAY_ENDS).touch()
    for role in OWN:
        kill(starter, role)
    looked(ray, int(ENDING_S))
    with pytest.raises(ProcessLostError, match="gcs_server"):
        looked(ray, 3)


def test_a_raylet_lost_before_the_first_look_is_missed(starter: "subprocess.Popen[bytes]", run: Path) -> None:
    kill(starter, Role.RAYLET)
    with pytest.raises(ProcessLostError, match="raylet"):
        looked(RayProcesses(starter, run, Clock()), 4)


def test_what_is_missing_is_on_record_and_printed_until_it_is_there_again(
    starter: "subprocess.Popen[bytes]",
    run: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ray, there = RayProcesses(starter, run, Clock()), set(Role)
    monkeypatch.setattr(ray, "_there", lambda: there)
    monkeypatch.setattr(time, "time", lambda: 60.0)
    looked(ray, 2)
    there -= {Role.CONTROLLER}
    looked(ray, 9)
    why = "no process of Ray Serve's controller runs"
    assert read_failures() == [WorkFailure(Work.SERVICE, why, 1, 60.0)]
    there -= {Role.INGRESS}
    looked(ray, 9)
    why = "no process of Ray Serve's controller and the ingress runs"
    assert read_failures() == [WorkFailure(Work.SERVICE, why, 2, 60.0)]
    there |= {Role.CONTROLLER, Role.INGRESS}
    looked(ray, 1)
    assert read_failures() == []
    printed = capsys.readouterr().err
    assert printed.count("no process of Ray Serve's controller runs") == 1
    assert printed.count("no process of Ray Serve's controller and the ingress runs") == 1
    assert printed.count("there again") == 1
    there -= {Role.INGRESS}
    looked(ray, 9)
    assert [failure.attempts for failure in read_failures()] == [1], "counted anew"


def test_the_processes_are_looked_at_once_a_second(
    starter: "subprocess.Popen[bytes]", run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, looks = 0.0, 0

    def there() -> set[Role]:
        nonlocal looks
        looks += 1
        return set(Role)

    ray = RayProcesses(starter, run, lambda: now)
    monkeypatch.setattr(ray, "_there", there)
    for _ in range(40):
        looked(ray, 1)
        now += LOOK_S / 8
    assert looks == 5


def test_processes_of_a_cluster_belong_to_others(
    starter: "subprocess.Popen[bytes]", run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    kill(starter, Role.RAYLET)
    looked(RayProcesses(starter, run, Clock()), 20)


@pytest.mark.usefixtures("run")
def test_without_a_folder_of_the_run_ray_has_started_once_its_controller_is_there(
    starter: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    ray, there = RayProcesses(starter, None, Clock()), set(OWN)
    monkeypatch.setattr(ray, "_there", lambda: there)
    looked(ray, 2)
    there -= {Role.CONTROL}
    looked(ray, int(STARTING_S))
    there |= set(Role)
    looked(ray, 2)
    there -= {Role.RAYLET, Role.CONTROLLER}
    with pytest.raises(ProcessLostError, match=r"without Ray's raylet \("):
        looked(ray, 4)


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        (lambda starter: starter.kill(), "killed by SIGKILL"),
        (lambda starter: starter.send_signal(signal.SIGTERM), "killed by SIGTERM"),
    ],
)
def test_a_process_that_runs_ray_serve_and_was_killed_is_named_with_the_signal(
    starter: "subprocess.Popen[bytes]",
    run: Path,
    ends: Callable[["subprocess.Popen[bytes]"], None],
    said: str,
) -> None:
    ray = RayProcesses(starter, run, Clock())
    ends(starter)
    starter.wait()
    with pytest.raises(ProcessLostError, match=rf"the process that runs Ray Serve \({said}\)"):
        ray.check()


@pytest.mark.parametrize(("code", "raises"), [(0, True), (1, False), (3, False)])
def test_an_end_with_a_code_passes_it_on(run: Path, code: int, raises: bool) -> None:
    with subprocess.Popen(["sh", "-c", f"exit {code}"], start_new_session=True) as ended:
        ended.wait()
        ray = RayProcesses(ended, run, Clock())
        if raises:
            with pytest.raises(ProcessLostError, match="exit code 0"):
                ray.check()
        else:
            assert ray.check() == code
