"""A replica of the ingress on another machine than the one that deployed it."""

import json
import subprocess
import sys
from pathlib import Path

from tests.agent.fakes import CONFIG

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
