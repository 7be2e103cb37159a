"""A service that runs."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from armwise.agent.config import AppConfig
from armwise.feedback.log import Store
from tests.agent.fakes import Service


@pytest.fixture
def store(config: AppConfig) -> Iterator[Store]:
    """The log of the configuration of a test."""
    store = Store(config.database_url)
    yield store
    store.close()


@pytest.fixture
async def on_each(tmp_path: Path, log_url: str) -> AsyncIterator[Service]:
    """The same over each of the two databases."""
    async with Service(tmp_path, log_url=log_url).running() as service:
        yield service


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    """One replica with a first version, over a log of its own."""
    async with Service(tmp_path).running() as service:
        yield service
