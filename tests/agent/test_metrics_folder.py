"""The folder of the counters belongs to one machine and one service."""

import tempfile
from pathlib import Path

import pytest

from armwise.agent.app import metrics_folder
from armwise.agent.run_folder import RUN_FOLDER


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv(RUN_FOLDER, raising=False)
    return tmp_path


def test_the_folder_is_new_and_of_this_user_alone(temporary: Path) -> None:
    first, second = metrics_folder(), metrics_folder()
    assert first != second
    assert second.parent == temporary
    assert second.stat().st_mode & 0o777 == 0o700


def test_behind_the_proxy_the_folder_is_that_of_the_run(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RUN_FOLDER, str(temporary))
    (metrics_folder() / "counter_1.db").touch()
    assert metrics_folder() == temporary / "metrics"
    assert [*(temporary / "metrics").iterdir()] == [], "what was counted before is not counted again"
