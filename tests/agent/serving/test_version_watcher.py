"""Which version a replica serves when the promoted recipe changes."""

from pathlib import Path

from tests.agent.fakes import FakeGate, Service
from tests.agent.learning.test_promotions import deciding, learned, say
from tests.agent.serving.test_canary import publish


async def test_a_promoted_recipe_serves_its_newest_version_although_another_recipe_has_newer_ones(
    tmp_path: Path,
) -> None:
    async with Service(tmp_path, gate=FakeGate(True)).running() as service:
        older = publish(service, kind="fixed", params={"arm": "none"}).version
        (*_, newest) = await learned(service, 2)
        assert await deciding(service) == newest > older
        body = (await say(service, "promote", older)).json()
        assert (body["serving"]["version"], body["kind"]) == (older, "fixed")
        assert await deciding(service) == older
        watcher = service.replica.watcher
        assert watcher.recipe.policy.kind == watcher.empty.kind == "fixed"
        assert watcher.configured.policy.kind != "fixed", "the configured recipe stays known"
