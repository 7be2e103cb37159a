"""Clients of JavaScript, run by Node.js."""

import json
import subprocess
from pathlib import Path

NODE = Path(__file__).parent / "node"


def test_vercels_sdk_and_openais_client_answer_stream_and_fill_a_schema(service: str) -> None:
    ran = subprocess.run(
        ["node", "sdk.mjs", service], cwd=NODE, capture_output=True, text=True, check=False, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    got = json.loads(ran.stdout)
    assert all(got[name] for name in ("whole", "streamed", "chat", "deltas"))
    assert isinstance(got["shaped"]["year"], int)
    assert 0 < got["usage"] <= 8
