"""A log of the service, with the decisions of the `WORLD` of a test file."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from armwise.agent.config import load
from armwise.feedback.log import Store
from tests.agent.evaluation.logged import configured


@pytest.fixture
def config(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    (tmp_path / "home").mkdir(mode=0o700)
    return configured(tmp_path, request.module.WORLD)


@pytest.fixture
def store(config: Path) -> Iterator[Store]:
    settings = load(config, ["router"])
    with closing(Store(settings.database_url, settings.reward.join)) as store:
        yield store
