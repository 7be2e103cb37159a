"""Which version a replica serves: the newest of the recipe that is followed, or one that was chosen."""

import logging
from contextlib import suppress
from dataclasses import dataclass

from agent.config import AppConfig
from agent.learning import Recipe, active_recipe, policy_of
from agent.learning import restore as learning_restore
from agent.policies import Policy, PolicyError
from agent.serving.messages import Canary
from feedback.log import Store
from feedback.registry import ActivePolicy, Version, active_policy, promotions, versions

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServedVersion:
    """What a replica decides with.

    Attributes:
        version: What was published.
        policy: Its policy.
    """

    version: Version
    policy: Policy


@dataclass(frozen=True, slots=True)
class ServingState:
    """What a look has found.

    Attributes:
        served: What is to be served; None before there is anything.
        said: What operators said that holds. A version that was chosen is another one than what is
            served where it cannot be read.
        canary: The candidate that takes a share; None where none does, or it cannot be read.
    """

    served: ServedVersion | None
    said: ActivePolicy
    canary: Canary | None = None


class VersionWatcher:
    """Looks for what is to be served.

    Args:
        store: The log.
        config: Says which recipe is active, unless another one was promoted under it.

    Attributes:
        configured: The recipe of the configuration.
        recipe: The one that is active, as of the last look.
        empty: A policy of that recipe without a history.
        arms: Names of the arms that a policy may choose among.
    """

    def __init__(self, store: Store, config: AppConfig) -> None:
        self._store = store
        self._config = config
        self.arms = list(config.actions)
        self.configured = Recipe.configured(config)
        self.recipe = self.configured
        self.empty = self.recipe.build(self.arms)
        self._word = self.recipe.digest  # the recipe that was said, which may not be the one that is active
        self._in_vain = (0, 0)  # the last version that could not be read, and the word that asked for it
        self._pin: tuple[int, promotions.Promotion | None] = (
            0,
            None,
        )  # the last rollback, and whether it holds here
        self._canary: tuple[int, Canary | None] = (0, None)  # the word on it, and what came of it

    def look(self, served: ServedVersion | None) -> ServingState:
        """Return what to serve from now on: what is served, if there is nothing else that can be read.

        Args:
            served: What is served; None before there is anything.

        Raises:
            LogUnavailableError: Try again later.
        """
        said = active_policy(self._store, self.configured.digest)
        if said.recipe != self._word:
            self.recipe = active_recipe(self._store, self._config, said)
            self.empty, self._word = self.recipe.build(self.arms), said.recipe
        pin, recipe = self._held(said), self.recipe.digest
        ours = served is not None and served.version.recipe == recipe
        number = served.version.version if served else 0
        if pin is None:
            version = versions.latest(self._store, recipe, number if ours else 0)
        else:
            version = None if pin.version == number else versions.find(self._store, pin.version)
        found = None if version is None else self._read(version, pin)
        if version is not None and found is None and pin is None and not ours:
            found = self._older(version)
        return ServingState(found or served, said, self._beside(said))

    def _held(self, said: ActivePolicy) -> promotions.Promotion | None:
        """Return the rollback that holds; None for none, or of a version that cannot be built here."""
        pin = said.pin
        if pin is not None and pin.seq != self._pin[0]:
            version = versions.find(self._store, pin.version)
            assert version is not None  # a word is about a version that was published
            try:
                self._empty_of(version)
                self._pin = pin.seq, pin
            except PolicyError as error:
                logger.warning("version %d was chosen and is passed over: %s", version.version, error)
                self._pin = pin.seq, None
        return None if pin is None else self._pin[1]

    def _beside(self, said: ActivePolicy) -> Canary | None:
        """Return the candidate that takes a share; it is learned again, once, where its bytes are lost."""
        word = said.canary
        if word is None:
            return None
        if self._canary[0] != word.seq or self._canary[1] is None:
            first = self._canary[0] != word.seq
            version, canary = versions.find(self._store, word.version), None
            assert version is not None  # a word is about a version that was published
            try:
                canary = Canary(self._found(version, again=first), version.version, word.share)
            except PolicyError as error:
                if first:
                    logger.warning("%s; it takes no part, although it is given a share", error)
            self._canary = word.seq, canary
        return self._canary[1]

    def _older(self, version: Version) -> ServedVersion | None:
        """Return the nearest version before one that can be read; None where none can."""
        for one in versions.kept_upto(self._store, version.recipe, version.examples_seq):
            if one.version < version.version:
                with suppress(PolicyError):
                    return ServedVersion(one, self._found(one, again=False))
        return None

    def _read(self, version: Version, pin: promotions.Promotion | None) -> ServedVersion | None:
        asked = version.version, pin.seq if pin else 0
        try:
            return ServedVersion(
                version, self._found(version, again=pin is not None and asked != self._in_vain)
            )
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
            return learning_restore.restore(
                self._empty_of(version), version, versions.checkpoint(self._store, version.version)
            )
        except PolicyError:
            if not again:
                raise
            return policy_of(self._store, version, self._config.reward, self.arms)

    def _empty_of(self, version: Version) -> Policy:
        """Return a policy of the recipe of a version, without a history. Raises PolicyError."""
        if version.recipe == self.recipe.digest:
            return self.empty
        return Recipe.of(version, self._config.reward).build(self.arms)
