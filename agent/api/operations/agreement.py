"""How far a shadow policy agrees with the active one, for `/v1/policy`."""

import asyncio
import time
from typing import Annotated

from fastapi import Depends, Request

from agent.api.middleware import AppReplica
from agent.policies import ShadowPolicy, shadow
from agent.serving import Replica
from feedback.registry import versions as registry_versions

COMPARED = 1000
"""Newest decisions, among which those with a shadow distribution are compared with the active policy."""

COMPARED_FOR_S = 1.0
"""How long the result of that comparison is reused."""


class ShadowAgreement:
    """How far a shadow policy agrees with the active policy, computed at most once per `COMPARED_FOR_S`."""

    def __init__(self) -> None:
        self._agreement = shadow.Agreement(0, 0.0, 0.0)
        self._valid_until = -float("inf")

    async def of(self, replica: Replica) -> shadow.Agreement | None:
        """Return the agreement; None where the recipe has no shadow policy."""
        recipe = replica.watcher.recipe
        if recipe.policy.kind != ShadowPolicy.kind:
            return None
        if time.monotonic() >= self._valid_until:
            decisions = await asyncio.to_thread(replica.store.newest, COMPARED)
            numbers = {one.version for one in decisions}
            of_recipe = await asyncio.to_thread(
                registry_versions.among, replica.store, recipe.digest, numbers
            )
            with_shadow = [one for one in decisions if one.shadow and one.version in of_recipe]
            compared = shadow.agreement(with_shadow) if with_shadow else shadow.Agreement(0, 0.0, 0.0)
            self._agreement, self._valid_until = compared, time.monotonic() + COMPARED_FOR_S
        return self._agreement


async def _shadow_agreement(request: Request, replica: AppReplica) -> ShadowAgreement:
    """Return the comparison of this application, at a decision point."""
    state = request.app.state
    if not hasattr(state, "shadow_agreements"):
        state.shadow_agreements = {}
    agreements: dict[str, ShadowAgreement] = state.shadow_agreements
    return agreements.setdefault(replica.point, ShadowAgreement())


Agreement = Annotated[ShadowAgreement, Depends(_shadow_agreement)]
