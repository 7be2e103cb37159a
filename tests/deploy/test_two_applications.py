"""The file of two applications builds two services that share nothing."""

import tempfile
from pathlib import Path

import pytest
import yaml

from armwise.agent.app import build
from tests.deploy.test_images import ROOT

FILE = ROOT / "deploy/ray/two_applications.yaml"


def test_each_application_is_built_with_a_home_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("ARMWISE_HOME", raising=False)
    applications = yaml.safe_load(FILE.read_text())["applications"]
    built = [build(application["args"])._bound_deployment for application in applications]  # noqa: SLF001
    assert [deployment.name for deployment in built] == ["Ingress", "Ingress"]
    assert len({deployment.init_args[0].database_url for deployment in built}) == 2
    assert len({application["route_prefix"] for application in applications}) == 2
