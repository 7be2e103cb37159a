"""The service, its arms and the verbs in environments of people: they answer, or say what is missing.

python -m pytest -n0 -m slow tests/anywhere
"""

import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from armwise.arms import proxies
from tests.agent.canned_service import ANY, Canned
from tests.anywhere.conftest import ROWS
from tests.arms.test_own_processes import NAMES
from tests.live.conftest import free_port, until
from tests.other_users import AS_NOBODY, IS_ROOT, NOBODY, nobody_may_run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

QUESTION = "Which function merges sorted inputs lazily?"

ANSWERED = "armwise feedback last thumb=1"
"""What stands below an answer, whichever arm was drawn."""

ROOT = Path(__file__).parents[2]

ARMWISE = str(Path(sys.executable).with_name("armwise"))

LIMIT_S = 400.0

DEAD = "127.0.0.1:9"
"""An address at which nothing listens."""


@dataclass(frozen=True)
class Place:
    """Where a service is started.

    Attributes:
        folder: The current folder.
        home: HOME, with the home of the service below.
        port: A free port.
    """

    folder: Path
    home: Path
    port: int


@dataclass(frozen=True)
class Environment:
    """An environment of somebody's.

    Attributes:
        name: What it is.
        variables: Variables that are set; None for one that is not.
        arrange: Makes the place what it is, until the service has ended.
        prefix: Words before the command.
        umask: Umask of the process.
        files: Limit of open files, hard and soft; None for that of here.
        says: What is said in the place of an answer; empty where an answer is expected.
        within_s: Seconds within which that is said.
        root: Whether only root can make it.
    """

    name: str
    variables: Mapping[str, str | None] = field(default_factory=dict)
    arrange: Callable[[Place], Iterator[None]] | None = None
    prefix: tuple[str, ...] = ()
    umask: int = 0o022
    files: int | None = None
    says: str = ""
    within_s: float = LIMIT_S
    root: bool = False


def with_own_modules(place: Place) -> Iterator[None]:
    for name in NAMES:
        path = place.folder / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text("raise SystemExit(f'{__file__} was imported')")
    yield


def on_a_taken_port(place: Place) -> Iterator[None]:
    with socket.create_server(("127.0.0.1", place.port)):
        yield


def of_nobody(place: Place) -> Iterator[None]:
    for path in (place.folder, place.home):
        os.chown(path, NOBODY, NOBODY)
    yield


def read_only(place: Place) -> Iterator[None]:
    place.folder.chmod(0o555)
    yield


def beside_busy_processes(_: Place) -> Iterator[None]:
    spinning = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))
    ]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")

LITTLE_SHARED_MEMORY = (
    "unshare",
    "--mount",
    "sh",
    "-c",
    'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"',
    "sh",
)

ENVIRONMENTS = (
    Environment("as it is"),
    Environment("C locale", {"LC_ALL": "C", "LANG": None}),
    Environment(
        "POSIX locale, no UTF-8 mode", {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    ),
    Environment("time zone 5:45 ahead", {"TZ": "Asia/Kathmandu"}),
    Environment("no HOME", {"HOME": None}),
    Environment("umask 000", umask=0o000),
    Environment("umask 077", umask=0o077),
    Environment("TERM dumb, 40 columns", {"TERM": "dumb", "COLUMNS": "40"}),
    Environment("PYTHONOPTIMIZE=1", {"PYTHONOPTIMIZE": "1"}),
    Environment("PYTHONWARNINGS=error", {"PYTHONWARNINGS": "error"}),
    Environment(
        "PYTHONDONTWRITEBYTECODE, PYTHONHASHSEED", {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "7"}
    ),
    Environment("kernel Nehalem", {"OPENBLAS_CORETYPE": "Nehalem"}),
    Environment("kernel Haswell", {"OPENBLAS_CORETYPE": "Haswell"}),
    Environment("OMP_NUM_THREADS=64", {"OMP_NUM_THREADS": "64"}),
    Environment("a bare PATH", {"PATH": "/usr/bin:/bin"}),
    Environment("TMPDIR with blank and umlaut", {"TMPDIR": "HOME/t mp ä"}),
    Environment(
        "dead proxies", {**dict.fromkeys(PROXIES, f"http://{DEAD}"), "ALL_PROXY": f"socks5://{DEAD}"}
    ),
    Environment(
        "SOCKS proxies in small letters, odd exceptions",
        {
            **dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), f"socks://me:secret@{DEAD}"),
            "NO_PROXY": "[::1]:80,fd00::/8, *.example",
            "no_proxy": " , ",
        },
    ),
    Environment(
        "a proxy that is none", {"HTTP_PROXY": "http://[", "HTTPS_PROXY": "ftp://a", "ALL_PROXY": "//"}
    ),
    Environment("folder with agent/, feedback/, arms.py, ray.py", arrange=with_own_modules),
    Environment("a read-only folder", arrange=read_only),
    Environment("twice as many busy processes as processors", arrange=beside_busy_processes),
    Environment("1,024 open files", files=1024),
    Environment("/dev/shm of 64 MB", prefix=LITTLE_SHARED_MEMORY, root=True),
    Environment(
        "another user",
        arrange=of_nobody,
        prefix=AS_NOBODY,
        root=True,
    ),
    Environment(
        "RAY_ADDRESS of a cluster that is gone",
        {"RAY_ADDRESS": DEAD},
        says=f"no cluster answers at RAY_ADDRESS={DEAD} (Connection refused): unset RAY_ADDRESS",
        within_s=20.0,
    ),
    Environment(
        "RAY_TMPDIR of 100 characters",
        {"RAY_TMPDIR": "/" + "t" * 99},
        says="is too long for Ray's sockets",
        within_s=20.0,
    ),
    Environment(
        "port taken", arrange=on_a_taken_port, says="cannot be used (Address already in use)", within_s=20.0
    ),
)


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=lambda one: one.name)
def test_the_service_answers_or_says_what_is_missing(
    environment: Environment, request: pytest.FixtureRequest
) -> None:
    if environment.root and not IS_ROOT:
        pytest.skip("root alone can make it")
    if environment.prefix == AS_NOBODY and not nobody_may_run(sys.executable):
        pytest.skip(f"that user may not run {sys.executable}")
    with place_of() as place:
        variables = variables_of(environment, place)
        command = [
            *environment.prefix,
            ARMWISE,
            "serve",
            "--cold",
            "--port",
            str(place.port),
            "--ask",
            QUESTION,
        ]
        began = time.monotonic()
        with ExitStack() as arranged:
            if environment.arrange is not None:
                arranged.enter_context(contextmanager(environment.arrange)(place))
            done = subprocess.run(
                command,
                cwd=place.folder,
                env=variables,
                umask=environment.umask,
                preexec_fn=None if environment.files is None else lambda: limit(environment.files or 0),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=LIMIT_S,
                check=False,
            )
        seconds = time.monotonic() - began
    output = done.stdout + done.stderr
    last = (done.stderr.strip().splitlines() or [""])[-1]
    as_expected = ANSWERED in done.stdout and done.returncode == 0
    if environment.says:
        as_expected = (
            environment.says in last and done.returncode in (1, 2) and seconds < environment.within_s
        )
    outcome = ("says what is missing" if environment.says else "answers") if as_expected else f"FAILS: {last}"
    request.config.stash[ROWS].append((environment.name, outcome, seconds))
    assert as_expected, output[-5000:]
    assert "Traceback" not in output, output[-5000:]
    assert "Warning:" not in output, output[-5000:]


VERBS = (
    "doctor -c config.yaml",
    *(f"ask What? --arm {arm} --url URL" for arm in ("found", "openai", "anthropic", "responses")),
    "feedback last thumb=1 --url URL",
    "status --url URL",
    "policy apply arms.yaml --keep found --keep anthropic --keep responses --url URL",
    "verify --log -c config.yaml",
    "prove -c config.yaml",
    "report -c config.yaml --since 1d",
    "audit -c config.yaml",
    "log export -c config.yaml -o log.jsonl",
    "replay -c config.yaml --policy uniform",
    "key list -c config.yaml",
    "log backup -c config.yaml copies",
    "lab simulate q.jsonl --metric thumb=em -o out --url URL",
    "ingest q.jsonl --name q -c config.yaml",
    "init q.jsonl --yes -o new.yaml",
)
"""What is run beside a service in each environment."""


def write_service(place: Place, address: str) -> None:
    """Write a configuration that has each kind of arm and model that asks over HTTP, at one address."""
    llms = {
        engine: {"engine": engine, "base_url": f"{address}/v1", "model": "m", "max_retries": 0}
        for engine in ("openai", "anthropic", "responses")
    }
    arms: dict[str, Any] = {name: {"kind": "none", "answering": {"llm": name}} for name in llms}
    asked = {"q": "{question}"}
    arms["found"] = {"kind": "remote", "params": {"url": f"{address}/search", "request": asked}}
    args = {
        "home": str(place.home / "service"),
        "corpus": {"name": "q", "source": str(place.folder / "q.jsonl")},
        "arms": arms,
        "llms": llms,
        "llm": llms["openai"],
        "reward": {"metrics": {"thumb": {"range": [-1, 1]}}},
    }
    application = {"name": "armwise", "import_path": "armwise.agent.app:build", "args": args}
    document = {"http_options": {"port": place.port}, "applications": [application]}
    (place.folder / "config.yaml").write_text(json.dumps(document))  # JSON is YAML
    (place.folder / "arms.yaml").write_text(json.dumps({"arms": {"openai": arms["openai"]}}))
    row = {"id": "q1", "question": "What?", "text": "That.", "answers": ["a"], "gold_ids": []}
    (place.folder / "q.jsonl").write_text(json.dumps(row) + "\n")


def reply_to_all() -> Canned:
    """Serve what a search and a model of each protocol answers, in one object."""
    server = Canned()
    usage = {"prompt_tokens": 3, "completion_tokens": 1, "input_tokens": 3, "output_tokens": 1}
    message = {"role": "assistant", "content": "That."}
    output = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "That."}]}
    server.reply(
        ANY,
        {
            "results": [{"id": "1", "text": "That.", "score": 1.0}],
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "content": [{"type": "text", "text": "That."}],
            "output": [output],
            "data": [{"id": "m"}],
            "status": "completed",
            "stop_reason": "end_turn",
            "usage": usage,
        },
    )
    return server


@pytest.mark.nightly
@pytest.mark.parametrize(
    "environment", [one for one in ENVIRONMENTS if not one.says], ids=lambda one: one.name
)
def test_each_verb_and_each_kind_of_arm_works(environment: Environment) -> None:
    """Nothing ends in a traceback, and this machine is reached: what asks it is answered."""
    if environment.root and not IS_ROOT:
        pytest.skip("root alone can make it")
    if environment.prefix == AS_NOBODY and not nobody_may_run(sys.executable):
        pytest.skip(f"that user may not run {sys.executable}")
    with place_of() as place, closing(reply_to_all()) as server, ExitStack() as stack:
        write_service(place, server.url)
        if environment.arrange is not None:
            stack.enter_context(contextmanager(environment.arrange)(place))
        where = {"cwd": place.folder, "env": variables_of(environment, place), "umask": environment.umask}
        files = environment.files
        command = [*environment.prefix, ARMWISE, "serve", "--cold", "--single-process", "-c", "config.yaml"]
        output = stack.enter_context((place.home.parent / "output.txt").open("w+"))
        process = subprocess.Popen(
            command,
            **where,
            stdout=output,
            stderr=output,
            preexec_fn=None if files is None else lambda: limit(files),
            start_new_session=True,
        )
        stack.callback(process.wait, 60)
        stack.callback(process.send_signal, signal.SIGINT)
        url = f"http://127.0.0.1:{place.port}"
        with proxies.client() as client:
            until(lambda: process.poll() is not None or is_ready(client, url), LIMIT_S)
        output.seek(0)
        assert process.poll() is None, output.read()[-5000:]
        failed = {}
        for verb in VERBS:
            done = subprocess.run(
                [*environment.prefix, ARMWISE, *verb.replace("URL", url).split()],
                **where,
                capture_output=True,
                text=True,
                errors="replace",
                stdin=subprocess.DEVNULL,
                timeout=LIMIT_S,
                check=False,
            )
            said = done.stdout + done.stderr
            if "Traceback" in said or (done.returncode not in (0, 1) and not verb.startswith(MAY_REFUSE)):
                failed[verb] = said[-3000:]
        assert failed == {}
        assert {path.partition("?")[0] for path in server.paths} >= ASKED


MAY_REFUSE = ("prove", "audit", "replay", "report", "export")
"""Verbs that say why they say nothing of a log of a few decisions."""

ASKED = {"/search", "/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/models"}
"""What the arms, the models and `doctor` ask for."""


def is_ready(client: httpx.Client, url: str) -> bool:
    try:
        return client.get(f"{url}/ready", timeout=5.0).is_success
    except httpx.HTTPError:
        return False


@contextmanager
def place_of() -> Iterator[Place]:
    """Yield a place whose paths have a blank and an umlaut, and which other users can enter."""
    folder = Path(f"/tmp/armwise anywhère {os.getpid()}")  # not of this test's user alone
    shutil.rmtree(folder, ignore_errors=True)
    place = Place(folder / "a folder", folder / "höme of", free_port())
    try:
        for path in (folder, place.folder, place.home):
            path.mkdir()
            path.chmod(0o755)
        yield place
    finally:
        with suppress(OSError):
            place.folder.chmod(0o755)
        shutil.rmtree(folder, ignore_errors=True)


def variables_of(environment: Environment, place: Place) -> dict[str, str]:
    """Return the variables of a process: few of here, and those of the environment."""
    of_here = ("PATH", "LANG", "LC_ALL", "OPENBLAS_CORETYPE", "LD_LIBRARY_PATH")
    variables = {name: os.environ[name] for name in of_here if name in os.environ}
    variables["HOME"] = str(place.home)
    for name, value in environment.variables.items():
        if value is None:
            variables.pop(name, None)
        else:
            variables[name] = value.replace("HOME", str(place.home))
    if "HOME" not in variables:
        variables["ARMWISE_HOME"] = str(place.home / "service")
    if "TMPDIR" in variables:
        Path(variables["TMPDIR"]).mkdir()
    return variables


def limit(files: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
