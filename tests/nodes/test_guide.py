"""A cluster of three machines, made with the commands of docs/guide/deployment.md as they stand there.

Names of hosts are replaced by addresses, and the log is a PostgreSQL that listens on a Unix socket. All
machines have a clean clone of the last commit, and the home of the service, with a small corpus, on a file
system that they share.
"""

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.neighbours import write_corpus
from tests.nodes.machines import ROOT, Machine, Network, NetworkError
from tests.pages import commands_of
from tests.postgres import running

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces of Linux take root"),
]

PAGE = "docs/guide/deployment.md"
KEY = "0123456789abcdef" * 4
PATIENCE_S = 400.0
SHORT = "Who asks?"
LONG = ("/v1/retrieve", {"query": "Which function merges sorted inputs lazily?"})


def until(look: Callable[[], bool], what: str, machines: list[Machine]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not look():
        if time.monotonic() > deadline:
            pytest.fail(
                "\n".join([f"not in time: {what}", *(m.output.read_text()[-3000:] for m in machines)])
            )
        time.sleep(0.1)


@dataclass
class Followed:
    """A cluster that is made as the page says.

    Attributes:
        machines: The first is the head.
        configuration: The `cluster.yaml` of all.
        section: What the page says of a cluster.
    """

    machines: list[Machine]
    configuration: Path
    section: str

    def follow(self, word: str, *machines: Machine) -> None:
        """Run the block of the section with a word in it, on several machines at once."""
        (block,) = [one for one in commands_of(PAGE) if word in one and one in self.section]
        block = block.replace("head.internal", self.machines[0].address)
        ends = [machine.type(block) for machine in machines]
        until(
            lambda: all(end.is_file() and end.read_text().endswith("\n") for end in ends), block, [*machines]
        )
        for machine, end in zip(machines, ends, strict=True):
            assert end.read_text() == "0\n", f"{block}\n{machine.output.read_text()[-3000:]}"

    def ask(self, machine: Machine, path: str = "/health/decides", body: object = None) -> int:
        """Return the status with which the proxy of a machine answers; 0 where none listens."""
        headers = {"Host": "armwise.example.com", "Authorization": f"Bearer {KEY}"}
        url, method = f"http://{machine.address}:8000{path}", "GET" if body is None else "POST"
        try:
            return httpx.request(method, url, headers=headers, json=body, timeout=120).status_code
        except httpx.TransportError:
            return 0

    def answering(self) -> list[Machine]:
        """Return the machines whose proxy reaches a replica that decides."""
        return [machine for machine in self.machines if self.ask(machine) == 200]


@pytest.fixture(scope="module")
def guide() -> Iterator[Followed]:
    """Three machines with a release, `cluster.yaml`, an environment and an empty log."""
    with ExitStack() as stack:
        try:
            network = stack.enter_context(Network())
        except NetworkError as error:
            pytest.skip(f"no machines can be made here: {error}")
        release = network.folder / "armwise"
        subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, release], check=True)
        (release / ".venv").symlink_to(sys.prefix)
        text = (ROOT / PAGE).read_text()
        section = text[text.index("\n## Run on a cluster\n") : text.index("\n## Run on Kubernetes\n")]
        url = stack.enter_context(running()).fresh()
        path = release / "cluster.yaml"
        corpus = {"name": "small", "source": str(write_corpus(network.folder / "corpus.jsonl"))}
        places = {"log_url": url, "home": str(network.folder / "home"), "corpus": corpus}
        path.write_text(yaml.safe_dump(copied(release / "agent/config/template.yaml", section, places)))
        own = {"HOME": str(network.home), "RAY_TMPDIR": str(network.home), "PYTHONPATH": str(release)}
        own |= {"OPERATOR_KEY": KEY, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "ARMWISE"))
        }
        machines = [network.machine() for _ in range(3)]
        for machine in machines:
            machine.run(["bash"], inherited | own)
            machine.type(f"cd {release}")
        yield Followed(machines, path, section)


def copied(original: Path, section: str, places: dict[str, Any]) -> object:
    """Return a configuration with what the section puts into it, and with what is found here."""
    document = yaml.safe_load(original.read_text())
    (shown,) = re.findall(r"^```yaml\n(proxy_location.*?)^```", section, re.MULTILINE | re.DOTALL)
    (told,) = (changes := yaml.safe_load(shown)).pop("applications")
    (application,) = document["applications"]
    application["args"] |= told.pop("args") | places
    return document | changes | {"applications": [application | told]}


def test_the_commands_of_the_page_make_change_and_stop_a_cluster(guide: Followed) -> None:
    head, *others = guide.machines
    guide.follow("--prepare-only", head)
    guide.follow("ray start --head", head)
    written = head.folder / ".ray" / "auth_token"
    assert written.stat().st_mode & 0o077 == 0, "others can read the token"
    for machine in others:
        copy = machine.folder / ".ray" / "auth_token"
        copy.parent.mkdir()
        copy.touch(0o600)
        copy.write_text(written.read_text())
    guide.follow("ray start --address", *others)
    until(lambda: len(guide.answering()) >= 2, "two machines answer", guide.machines)
    for number, machine in enumerate(guide.answering()):
        assert guide.ask(machine, *LONG) == 200
        chat = {"messages": [{"role": "user", "content": SHORT}]}
        assert guide.ask(machine, "/v1/chat/completions", chat) == 200
        feedback = {"decision_id": f"later-{number}", "metric_name": "thumb", "value": 1.0}
        assert guide.ask(machine, "/v1/feedback", feedback) == 202

    document = yaml.safe_load(guide.configuration.read_text())
    document["applications"][0]["args"]["limits"] = {"question_chars": len(SHORT)}
    guide.configuration.write_text(yaml.safe_dump(document))
    over, seen = threading.Event(), list[int]()

    def traffic() -> None:
        while not over.wait(0.2):
            seen.append(guide.ask(head, "/v1/retrieve", {"query": SHORT}))

    client = threading.Thread(target=traffic)
    client.start()
    try:
        guide.follow("serve status", head)
        until(lambda: all(guide.ask(head, *LONG) == 400 for _ in range(10)), "other settings", guide.machines)
    finally:
        over.set()
        client.join()
    assert set(seen) == {200}, "a client noticed the deployment"

    leaving = next(machine for machine in others if machine in guide.answering())
    guide.follow("ray stop", leaving)
    assert guide.ask(leaving) == 0
    assert guide.ask(head, "/v1/retrieve", {"query": SHORT}) == 200
    guide.follow("serve shutdown", head)
    until(lambda: not guide.answering(), "the service has stopped", guide.machines)
