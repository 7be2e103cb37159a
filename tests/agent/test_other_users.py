"""What another user of this machine can do to a home, to a run and to Ray: nothing."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest
import yaml

from armwise.agent.config import make_home, parse_with_environment
from armwise.arms import local_ray
from tests.agent.fakes import CONFIG
from tests.other_users import IS_ROOT, NOBODY, USUAL, exposed, refused

AS_ROOT = pytest.mark.skipif(not IS_ROOT, reason="root alone can become another user")

ROOT = Path(__file__).parents[2]


@pytest.fixture
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder that everybody can enter: those of pytest are closed already."""
    folder = Path("/tmp") / f"others-{os.getpid()}-{tmp_path_factory.mktemp('n').name}"
    folder.mkdir()
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def written(folder: Path) -> Path:
    """Write a configuration with a corpus of twelve passages; return its path."""
    lines = [{"id": f"p{i}", "title": f"River {i}", "text": f"River {i} meets the sea."} for i in range(12)]
    corpus = folder / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(line) + "\n" for line in lines))
    args = {**CONFIG, "home": str(folder / "home"), "corpus": {"name": "small", "source": str(corpus)}}
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({"http_options": {"port": 0}, "applications": [{"args": args}]}))
    questions = folder / "questions.jsonl"
    questions.write_text(json.dumps({"id": "q1", "question": "Which river?", "gold_ids": ["p1"]}) + "\n")
    return path


def armwise(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run a verb in a folder with the usual umask, without the settings of this environment."""
    names = ("ARMWISE_HOME", "RAY_ADDRESS", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    return subprocess.run(
        [sys.executable, "-m", "armwise", *words],
        cwd=folder,
        env=environment | {"PYTHONPATH": str(ROOT), "HOME": str(folder)},
        umask=USUAL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "words",
    [
        ["key", "create", "--name", "first", "-c", "config.yaml"],
        ["ingest", "corpus.jsonl", "--name", "more", "-c", "config.yaml"],
        ["lab", "synthesize", "-o", "made.jsonl", "--questions", "2", "-c", "config.yaml"],
        ["init", "corpus.jsonl", "--yes", "-o", "new.yaml"],
    ],
    ids=lambda words: words[0],
)
@pytest.mark.slow
def test_what_a_verb_makes_is_of_its_user_alone(outside: Path, words: Sequence[str]) -> None:
    written(outside)
    before = set(outside.iterdir())
    done = armwise(outside, *words)
    assert done.returncode == 0, done.stderr
    made = set(outside.iterdir()) - before
    assert made
    assert [line for place in made for line in exposed(place)] == []
    if IS_ROOT:
        for place in made:
            assert refused("read" if place.is_file() else "list", place)


def test_a_home_that_others_can_read_is_closed_and_named(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "corpora").mkdir(parents=True)
    (home / "log.db").touch()
    for place, mode in ((home / "corpora", 0o755), (home / "log.db", 0o644), (home, 0o755)):
        place.chmod(mode)
    config = parse_with_environment({**CONFIG, "home": str(home)})
    closed = "closed to other users of this machine:"
    assert make_home(config) == [f"{closed} {home} (mode 755)", f"{closed} {home}/log.db (mode 644)"]
    if IS_ROOT:
        assert refused("list", home / "corpora")
    assert make_home(config) == []


def test_a_log_outside_of_the_home_is_closed_but_not_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o755)
    (folder / "log.db").touch()
    (folder / "log.db").chmod(0o666)
    document = {**CONFIG, "home": str(tmp_path / "home"), "log_url": f"sqlite:///{folder}/log.db"}
    closed = "closed to other users of this machine:"
    assert make_home(parse_with_environment(document)) == [f"{closed} {folder}/log.db (mode 666)"]
    (folder / "log.db-wal").touch()
    (folder / "log.db-wal").chmod(0o604)
    assert make_home(parse_with_environment(document)) == [f"{closed} {folder}/log.db-wal (mode 604)"]
    assert folder.stat().st_mode & 0o777 == 0o755


def test_a_link_in_a_home_leads_nowhere(tmp_path: Path) -> None:
    elsewhere = tmp_path / "file"
    elsewhere.touch()
    elsewhere.chmod(0o644)
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "log.db").symlink_to(elsewhere)
    assert make_home(parse_with_environment({**CONFIG, "home": str(home)})) == []
    assert elsewhere.stat().st_mode & 0o777 == 0o644


KILLED = """
import os, signal
from armwise.arms import local_ray
with local_ray.private_folder() as folder:
    (folder / "cache").touch()
    print(folder, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@AS_ROOT
def test_a_home_of_another_user_stays_as_it_is(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o755)
    os.chown(home, NOBODY, NOBODY)
    assert make_home(parse_with_environment({**CONFIG, "home": str(home)})) == []
    assert home.stat().st_mode & 0o777 == 0o755


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where private folders are made: a longer path than sockets allow, of which there are none here."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setattr(local_ray, "LONGEST_BASE", 1000)
    return tmp_path


def aged(folder: Path, seconds: float) -> Path:
    then = folder.stat().st_mtime - seconds
    os.utime(folder, (then, then))
    return folder


def test_the_folder_of_a_killed_process_is_removed_by_the_next_one(base: Path) -> None:
    script = "from armwise.arms import local_ray; local_ray.LONGEST_BASE = 1000" + KILLED
    killed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    left = Path(killed.stdout.strip())
    assert left.stat().st_mode & 0o777 == 0o700
    with local_ray.private_folder():
        assert left.exists(), "its process may be about to lock it"
    assert local_ray.YOUNG_S == 60.0
    aged(left, 61.0)
    with local_ray.private_folder() as own:
        assert [*base.iterdir()] == [own]
    assert [*base.iterdir()] == []


def test_the_folder_of_a_living_process_and_what_is_no_folder_of_ours_stay(base: Path) -> None:
    elsewhere = base / "elsewhere"
    elsewhere.mkdir()
    (base / "armwise-linklink").symlink_to(elsewhere)
    (base / "armwise-metrics-1").mkdir()
    aged(base / "armwise-metrics-1", 1000)
    aged(elsewhere, 1000)
    if IS_ROOT:
        (base / "armwise-otheruse").mkdir()
        os.chown(base / "armwise-otheruse", NOBODY, NOBODY)
        aged(base / "armwise-otheruse", 1000)
    with local_ray.private_folder() as living:
        aged(living, 1000)
        with local_ray.private_folder():
            assert living.exists()
    others = {"armwise-otheruse"} if IS_ROOT else set()
    assert {place.name for place in base.iterdir()} - others == {
        "elsewhere",
        "armwise-linklink",
        "armwise-metrics-1",
    }
    assert all((base / name).exists() for name in others)


def test_a_folder_too_deep_for_rays_sockets_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    deep = "/" + "a" * local_ray.LONGEST_BASE
    monkeypatch.setenv("RAY_TMPDIR", deep)
    with (
        pytest.raises(ValueError, match=rf"RAY_TMPDIR={deep} .* 23 bytes.* 22 "),
        local_ray.private_folder(),
    ):
        pass
    monkeypatch.delenv("RAY_TMPDIR")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with local_ray.private_folder() as folder:
        assert folder.parent == Path("/tmp")


def test_private_folders_are_in_the_temporary_folder(outside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    short = Path("/tmp/" + "a" * (local_ray.LONGEST_BASE - 5))
    short.symlink_to(outside)
    try:
        monkeypatch.setattr("tempfile.tempdir", str(short))
        with local_ray.private_folder() as folder:
            assert folder.parent == short
    finally:
        short.unlink()


JOB = """
import sys
from pathlib import Path
import ray
from armwise.arms import local_ray
from armwise.arms.lab.jobs import ray_workers

@ray.remote
def mask():
    import os
    return os.umask(0)

with ray_workers.cluster(1):
    print(oct(ray.get(mask.remote())), local_ray.folder_of_this_process(), flush=True)
    sys.stdin.read()
with ray_workers.cluster(1):  # a second one in the same process, with the same token
    print(oct(ray.get(mask.remote())), flush=True)
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[psutil.Process, Path, Path]]:
    """A job with a Ray of its own, started with the usual umask: process, folder of Ray, home of the user."""
    home = tmp_path_factory.mktemp("home")
    dropped = ("RAY_ADDRESS", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_TOKEN", "RAY_AUTH_MODE", "RAY_TMPDIR")
    environment = {name: value for name, value in os.environ.items() if name not in dropped}
    with subprocess.Popen(
        [sys.executable, "-c", JOB],
        env=environment | {"HOME": str(home), "PYTHONPATH": str(ROOT)},
        umask=USUAL,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        # Ray prints what it warns of on this stream as well
        mask, folder = next(line for line in process.stdout if line.startswith("0o")).split()
        assert mask == "0o77"
        yield psutil.Process(process.pid), Path(folder), home
        rest, _ = process.communicate()
        assert [line for line in rest.splitlines() if line.startswith("0o")] == ["0o77"]
    assert process.returncode == 0
    assert not Path(folder).exists(), "removed at the end"


@pytest.mark.slow
def test_a_ray_of_one_machine_has_no_dashboard(job: tuple[psutil.Process, Path, Path]) -> None:
    process, _, _ = job
    lines = [" ".join(one.cmdline()) for one in process.children(recursive=True)]
    assert any("gcs_server" in line for line in lines)
    assert [line for line in lines if "monitor.py" in line and "log_monitor.py" not in line] == []
    assert [line for line in lines if "dashboard.py" in line] == []


@pytest.mark.slow
def test_the_ray_of_a_job_listens_on_the_loopback_address_alone(
    job: tuple[psutil.Process, Path, Path],
) -> None:
    process, _, _ = job
    listening = [
        connection.laddr.ip
        for one in (process, *process.children(recursive=True))
        for connection in one.net_connections(kind="tcp")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert len(listening) > 5
    assert {ip.removeprefix("::ffff:") for ip in listening} == {"127.0.0.1"}


def test_the_folder_of_ray_is_behind_a_door(job: tuple[psutil.Process, Path, Path]) -> None:
    _, folder, home = job
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "token").stat().st_mode & 0o777 == 0o600
    assert [*(folder / "ray").glob("session_2*/sockets/raylet")]
    assert not (home / ".ray").exists(), "no token is left behind"


@AS_ROOT
@pytest.mark.slow
def test_another_user_cannot_take_the_place_of_rays_sockets(job: tuple[psutil.Process, Path, Path]) -> None:
    _, folder, _ = job
    (sockets,) = (folder / "ray").glob("session_2*/sockets")
    assert refused("list", sockets)
    assert refused("read", folder / "token")
    assert refused("rename", folder)
    for name in ("raylet", "plasma_store"):
        assert (sockets / name).is_socket()
        assert refused("rename", sockets / name)
        assert refused("connect", sockets / name)
        assert refused("replace", sockets / name)


@AS_ROOT
@pytest.mark.slow
def test_who_looks_finds_what_is_open(outside: Path) -> None:
    (outside / "open").touch(0o644)
    (outside / "open").chmod(0o644)
    assert not refused("read", outside / "open")
    assert refused("change", outside / "open")
    assert exposed(outside) == [f"{outside} drwxr-xr-x", f"{outside}/open -rw-r--r--"]
