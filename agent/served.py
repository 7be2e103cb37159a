"""Which version a replica serves: the newest of its configuration, or the one that an operator chose."""

import logging
from contextlib import suppress
from dataclasses import dataclass

from agent.config import AppConfig
from agent.learner import recipe_of, restore
from agent.past import policy_of
from agent.policies.catalog import build_policy
from agent.policy import Policy, PolicyError
from feedback.promotions import Promotion, in_force
from feedback.store import Store
from feedback.versions import Version, checkpoint, find, kept_upto, latest

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Served:
    """What a replica decides with.

    Attributes:
        version: What was published.
        policy: Its policy.
    """

    version: Version
    policy: Policy


class Lookout:
    """Looks for what is to be served.

    Args:
        store: The log.
        config: Says which recipe is served.

    Attributes:
        recipe: Of every version that may be served.
        empty: A policy of that recipe without a history.
    """

    def __init__(self, store: Store, config: AppConfig) -> None:
        self._store = store
        self._config = config
        self.recipe = recipe_of(config.policy, config.reward)
        self.empty = build_policy(config.policy, list(config.actions))
        self._in_vain = (0, 0)  # the last version that could not be read, and the word that asked for it

    def look(self, served: Served | None) -> tuple[Served | None, Promotion | None]:
        """Return what to serve from now on: what is served, if there is nothing else that can be read.

        Args:
            served: What is served; None before there is anything.

        Returns:
            With it the word in force that one version is to be served, which is another one where that
            cannot be read; None where the newest is to be.

        Raises:
            LogUnavailableError: Try again later.
        """
        said = in_force(self._store, self.recipe)
        pin = said if said and said.pins else None
        number = served.version.version if served else 0
        if pin is None:
            version = latest(self._store, self.recipe, number)
        else:
            version = None if pin.version == number else find(self._store, pin.version)
        found = None if version is None else self._read(version, pin)
        if version is not None and found is None and served is None and pin is None:
            found = self._older(version)
        return found or served, pin

    def _older(self, version: Version) -> Served | None:
        """Return the nearest version before one that can be read; None where none can."""
        for one in kept_upto(self._store, self.recipe, version.examples_seq):
            if one.version < version.version:
                with suppress(PolicyError):
                    return Served(one, self._found(one, again=False))
        return None

    def _read(self, version: Version, pin: Promotion | None) -> Served | None:
        asked = version.version, pin.seq if pin else 0
        try:
            return Served(version, self._found(version, again=pin is not None and asked != self._in_vain))
        except PolicyError as error:
            # Pruned since: a newer one is there. Damaged, or of another library: the next one will not be.
            if asked != self._in_vain:
                stays = (
                    "still serving the version before"
                    if pin is None
                    else "and it was chosen: promote another"
                )
                logger.warning("%s; %s", error, stays)
                self._in_vain = asked
            return None

    def _found(self, version: Version, *, again: bool) -> Policy:
        """Return a policy from its bytes, which may have been put back since the last look.

        Args:
            version: What was published.
            again: Whether it is learned again where they are lost: nothing else may be served. That
                may take minutes, and is tried once for each word.

        Raises:
            PolicyError: It cannot be had.
        """
        try:
            return restore(self.empty, version, checkpoint(self._store, version.version))
        except PolicyError:
            if not again:
                raise
            return policy_of(self._store, version, self._config.reward, list(self._config.actions))


__all__ = ["Lookout", "Served"]
