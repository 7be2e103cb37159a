"""Clients of JavaScript, run by Node.js."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

NODE = Path(__file__).parent / "node"

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node.js")


def test_vercels_sdk_and_openais_client_answer_stream_and_fill_a_schema(service: str) -> None:
    ran = subprocess.run(
        ["node", "sdk.mjs", service], cwd=NODE, capture_output=True, text=True, check=False, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    got = json.loads(ran.stdout)
    assert all(got[name] for name in ("whole", "streamed", "chat", "deltas"))
    assert isinstance(got["shaped"]["year"], int)
    assert 0 < got["usage"] <= 8
