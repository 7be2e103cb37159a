"""A service that is ended while it prepares leaves no process behind."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

PARENT = """
import sys
from pathlib import Path
from agent.cli import launch
sys.executable = sys.argv[1]
launch.prepared(Path("serve_config.yaml"))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone tells a process that its parent has ended")
def test_what_prepares_ends_with_the_service_that_started_it(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho $$\nexec sleep 600\n")
    program.chmod(0o700)
    with subprocess.Popen([sys.executable, "-c", PARENT, str(program)], stdout=subprocess.PIPE) as service:
        assert service.stdout is not None
        preparing = psutil.Process(int(service.stdout.readline()))
        service.terminate()
        psutil.wait_procs([preparing], timeout=60)
        left = preparing.is_running() and preparing.status() != psutil.STATUS_ZOMBIE
        if left:
            preparing.kill()
        assert not left
