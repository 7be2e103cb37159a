"""A service of which a deployment cannot start ends, and says why."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.conftest import ROOT, configuration, free_port

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(300)]


def test_a_deployment_that_fails_for_good_ends_the_service_with_its_reason(tmp_path: Path) -> None:
    arms = {"none": {"kind": "none"}, "lost": {"kind": "tests.live.arm:Lost", "params": {"path": "gone.idx"}}}
    config = configuration(tmp_path, free_port(), arms=arms, router=None, backbones={})
    command = [sys.executable, "-m", "armwise", "serve", "--cold", "-c", str(config)]
    once = {**os.environ, "RAY_SERVE_MAX_PER_REPLICA_RETRY_COUNT": "1"}  # not thrice, each in a new process
    done = subprocess.run(
        command, cwd=ROOT, env=once, capture_output=True, text=True, timeout=240, check=False
    )
    last = done.stderr.strip().splitlines()[-1]
    assert last == "deployment Arms has failed for good: ValueError: gone.idx is damaged: build it again"
    assert done.returncode == 1
