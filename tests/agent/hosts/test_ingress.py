"""A replica of the ingress on another machine than the one that deployed it."""

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from feedback.log import Store
from tests.agent.fakes import CONFIG
from tests.postgres import Server

OPEN = """
import json, os, sys
from agent.config import parse
from agent.hosts.ingress import open_replica
from tests.agent.fakes import FakeArms, FakeEmbedders
from arms.llm.base import ScriptedGenerator
config, counters = parse(json.loads(sys.argv[1])), sys.argv[2]
open_replica(config, FakeArms(), FakeEmbedders(), {"default": ScriptedGenerator({})}, None, counters)
os._exit(0)  # the writer of the log runs on
"""


def test_a_replica_makes_the_folder_of_its_counters(tmp_path: Path) -> None:
    folder = tmp_path / "home" / "metrics" / "of this service"
    config = json.dumps({**CONFIG, "log_url": f"sqlite:///{tmp_path / 'log.db'}"})
    subprocess.run([sys.executable, "-c", OPEN, config, str(folder)], check=True)
    assert list(folder.glob("*.db"))


SHOW = OPEN.replace("open_replica(config", "replica = open_replica(config").replace(
    "os._exit(0)",
    """with replica.store.reading() as connection:
    print(connection.exec_driver_sql("SHOW statement_timeout").scalar(), flush=True)
os._exit(0)""",
)


def test_statements_of_requests_are_shorter_than_those_of_the_learner(
    postgres: Server, tmp_path: Path
) -> None:
    url = postgres.fresh()
    config = json.dumps({**CONFIG, "log_url": url})
    command = [sys.executable, "-c", SHOW, config, str(tmp_path / "counters")]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip() == "10s"
    with closing(Store(url)) as store, store.reading() as connection:
        assert connection.exec_driver_sql("SHOW statement_timeout").scalar() == "1min"
