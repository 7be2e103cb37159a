"""The commands that the README and the guide show, run in a copy of the project as a reader would run them.

The copy shares the virtual environment that is installed already, has a home of its own, and one service
that `make serve` has started. Pages are run in the order in which a newcomer reads them.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.other_users import USUAL, exposed
from tests.pages import ROOT, commands_of

URL = "http://127.0.0.1:8000"
START_S = 600.0
PAGE_S = 900.0

PAGES = (
    "README.md",
    "docs/guide/quickstart.md",
    "docs/guide/own-data.md",
    "docs/guide/feedback.md",
    "docs/guide/arms.md",
    "docs/guide/engines.md",
    "docs/guide/policies.md",
    "docs/guide/replay.md",
    "docs/guide/audit.md",
    "docs/guide/promotion.md",
    "docs/guide/report.md",
    "docs/guide/warm-start.md",
    "docs/guide/extending/policy.md",
    "docs/guide/extending/router.md",
    "docs/guide/deployment.md",
    "docs/guide/demo.md",
    "docs/guide/tap.md",
    "docs/guide/data.md",
    "docs/guide/telemetry.md",
    "docs/guide/permissions.md",
    "docs/guide/keys.md",  # last: it closes the service
)

BY_NIGHT = {*PAGES} - {"README.md"}
"""Pages that are run once a night: all of them take twenty minutes."""

ALONE = ("armwise serve",)
"""Commands that are run elsewhere where they are the whole line: the service of the fixture is there."""

ELSEWHERE = {
    "make serve": "the fixture runs it",
    "pip install": "tests/fresh does, in empty environments",
    "make test": "it is what runs this test",
    "armwise demo": "tests/agent/demo runs it",
    "armwise-demo/": "what `armwise demo` leaves",
    "armwise policy canary 41": "tests/live/test_promotion.py, with a candidate of another recipe",
    "armwise policy promote 41": "as above",
    "armwise policy rollback 17": "as above",
    "later_labels": "tests/agent/lab/offline/test_evaluate_router.py, with outcomes of other questions",
    "RAY_AUTH_MODE": "a cluster of its own: tests/nodes/test_guide.py makes one",
    "ray get-auth-token": "as above",
    "cluster.yaml": "as above",
    "ray start": "as above",
    "ray stop": "as above",
    "serve status": "as above",
    "serve shutdown": "as above",
    "export OTEL": "tests/live/test_telemetry.py, with a receiver of its own",
}
"""Commands that are not run here, by a part of their line, and who runs them."""

MODULES = (
    *("collections", "functools", "heapq", "itertools", "math"),
    *("random", "shutil", "statistics", "subprocess", "uuid"),
)
"""What `stdlib` and the questions about it are cut down to: encoding all of it takes minutes."""

QUESTIONS = ("examples/questions.jsonl", "examples/stdlib_questions.jsonl")

LESS = (
    ("arms/corpus/stdlib.py", "sorted(sys.stdlib_module_names)", repr(MODULES)),
    ("serve_config.yaml", "questions: 1000", "questions: 200"),
    ("serve_config.yaml", "passages: 2000", "passages: 50"),
)
"""Files of the copy, each with a text that says how much there is to do, and one that says less."""

FEWER = {
    "--limit 50": "--limit 10",
    "--limit 20": "--limit 10",
    "--questions 600": "--questions 120",
    "portfolio scores -k 4": "portfolio scores -k 4 --start words",
}
"""Options of the commands that say how many questions there are, and what they are here.

So few questions may not choose an arm over the library for the portfolio.
"""

OWN_HOME = {".venv/bin/armwise init ": "ARMWISE_HOME=home/mine .venv/bin/armwise init "}
"""Commands that need a home of their own here: ARMWISE_HOME is set, so that the service has the usual one."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(PAGE_S + START_S)]


@dataclass(frozen=True)
class Copy:
    """A copy of the project with a service.

    Attributes:
        folder: Where it is.
        environment: What its commands are started with.
    """

    folder: Path
    environment: dict[str, str]

    def run(self, commands: str) -> None:
        """Run the commands of a page; the first that fails ends them."""
        strict = commands.replace("curl -s ", "curl -sS --fail-with-body ")
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", strict],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PAGE_S,
            umask=USUAL,
            check=False,
        )
        assert done.returncode == 0, f"{commands}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        assert exposed(self.folder / "home") == [], "others can read what the commands made"


def lines_of(block: str) -> list[str]:
    """Return the commands of a block, each with the lines that continue it."""
    return re.findall(r"(?:[^\n]*\\\n)*[^\n]+", block)


def here(block: str) -> str:
    """Return a block without the commands that are run elsewhere, and with fewer questions."""
    kept = "\n".join(
        line for line in lines_of(block) if line not in ALONE and not any(part in line for part in ELSEWHERE)
    )
    for shown, instead in (FEWER | OWN_HOME).items():
        kept = kept.replace(shown, instead)
    return kept


def of_modules(line: str) -> bool:
    """Return whether all that answers a question is in the corpus."""
    row = json.loads(line)
    names = (gold.removeprefix("library/") for gold in row["gold_ids"])
    return row.get("dataset", "library") != "library" or all(name.split(".")[0] in MODULES for name in names)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copy]:
    """A copy of what git would commit, served by its own `make serve`."""
    assert not ready(), f"another service answers at {URL}"
    folder = tmp_path_factory.mktemp("clone")
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    ):
        if (ROOT / name).is_file() or (ROOT / name).is_symlink():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    for name, much, little in LESS:
        text = (folder / name).read_text(encoding="utf-8")
        assert text.count(much) == 1, f"{name} says elsewhere how much there is"
        (folder / name).write_text(text.replace(much, little), encoding="utf-8")
    for name in QUESTIONS:
        asked = (folder / name).read_text(encoding="utf-8").splitlines(keepends=True)
        (folder / name).write_text("".join(filter(of_modules, asked)), encoding="utf-8")
    environment = Path(sys.prefix)
    for stamp in ("ready", "ready-dev"):  # what is installed is that of this very tree
        (environment / stamp).touch()
    (folder / ".venv").symlink_to(environment)
    passages = [{"id": str(n), "title": f"note {n}", "text": f"The note of number {n}."} for n in range(20)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(passage) + "\n" for passage in passages))
    path = f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"
    found = {**os.environ, "PATH": path, "ARMWISE_HOME": str(folder / "home"), "PYTHONPATH": str(folder)}
    made = Copy(
        folder, {key: value for key, value in found.items() if not key.startswith(("PYTEST", "RAY_"))}
    )
    with (folder / "serve.log").open("w") as log:
        service = subprocess.Popen(
            ["make", "serve"],
            cwd=folder,
            env=made.environment,
            stdout=log,
            stderr=log,
            umask=USUAL,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + START_S
        while not ready():
            assert service.poll() is None, (folder / "serve.log").read_text()[-3000:]
            assert time.monotonic() < deadline, (folder / "serve.log").read_text()[-3000:]
            time.sleep(1.0)
        yield made
    finally:
        os.killpg(service.pid, signal.SIGINT)
        try:
            service.wait(60.0)
        except subprocess.TimeoutExpired:
            os.killpg(service.pid, signal.SIGKILL)


def ready() -> bool:
    """Return whether a service is ready at the address of the pages, and everything is built."""
    try:
        reply = httpx.get(f"{URL}/ready")
        return reply.status_code == 200 and reply.json()["building"] is None
    except httpx.TransportError:
        return False


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.nightly if page in BY_NIGHT else ()) for page in PAGES],
)
def test_the_commands_of_a_page_work(page: str, copy: Copy) -> None:
    commands = "\n".join(here(block) for block in commands_of(page))
    assert commands.strip(), f"{page} shows no command"
    copy.run(commands)
