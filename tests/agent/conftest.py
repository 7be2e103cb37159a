"""A service that runs."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.agent.fakes import Service


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    """One replica with a first version, over a log of its own."""
    async with Service(tmp_path).running() as service:
        yield service
