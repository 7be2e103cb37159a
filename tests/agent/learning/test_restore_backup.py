"""A copy by `armwise log backup` is put back in place of a lost log, and the service goes on from it."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from armwise.agent.learning.rebuild import verify_states
from armwise.feedback.log import Store
from armwise.feedback.registry import versions
from tests.agent.asking import ask, tell
from tests.agent.fakes import Service


async def asked(service: Service, number: int) -> list[str]:
    """Ask, rate every second answer, learn, and return the ids of the decisions."""
    names = [(await ask(service)).headers["x-decision-id"] for _ in range(number)]
    assert [(await tell(service, name)).status_code for name in names[::2]] == [202] * len(names[::2])
    await service.learn()
    return names


def digests(url: str) -> dict[int, str]:
    """Return the digest of each version of a log."""
    with closing(Store(url)) as store:
        return {each.version: each.digest for each, _ in versions.page(store, 100)}


@pytest.mark.slow
async def test_a_backup_that_is_copied_back_gives_the_same_versions(tmp_path: Path) -> None:
    log, copy = tmp_path / "log.db", tmp_path / "backup" / "log.db"
    copy.parent.mkdir()
    async with Service(tmp_path).running() as service:
        url = service.config.database_url
        names = await asked(service, 12)
        with closing(Store(url)) as store:
            store.backup(copy)
        before = digests(url)
        shown: list[Any] = [(await service.client.get(f"/v1/decisions/{name}")).json() for name in names]
        later = await asked(service, 4)
    assert len(before) > 1
    for name in ("log.db", "log.db-wal", "log.db-shm"):  # as docs/guide/data.md says
        (tmp_path / name).unlink(missing_ok=True)
    log.write_bytes(copy.read_bytes())
    assert digests(url) == before
    with closing(Store(url)) as store:
        assert verify_states(store, service.config, lambda *_: None, every=True).sound
    async with Service(tmp_path).running() as service:
        assert [(await service.client.get(f"/v1/decisions/{name}")).json() for name in names] == shown
        gone = [(await service.client.get(f"/v1/decisions/{name}")).status_code for name in later]
        assert gone == [404] * 4
        (name, *_) = await asked(service, 4)
        assert (await service.client.get(f"/v1/decisions/{name}/verify")).json()["verified"]
        assert verify_states(service.replica.store, service.config, lambda *_: None, every=True).sound
    assert digests(url).items() > before.items()
