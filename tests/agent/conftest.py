"""A service that runs."""

from collections.abc import AsyncIterator, Iterator
from hashlib import sha256
from itertools import count
from pathlib import Path

import pytest

from armwise.agent.access import keyring
from armwise.agent.config import AppConfig
from armwise.feedback.log import Store
from tests.agent.fakes import Service


@pytest.fixture(autouse=True)
def _ids_of_a_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """Give the decisions of a test the same ids in every run, and so the same draws."""
    numbers = count(1)

    def new_id() -> str:
        number = next(numbers)
        return f"{number:012x}{sha256(f'{request.node.nodeid} {number}'.encode()).hexdigest()[:20]}"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keyring, "new_id", new_id)
        yield


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
