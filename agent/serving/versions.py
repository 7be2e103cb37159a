"""The version that is served: the newest of the active recipe, or one pinned by a rollback."""

import logging
from contextlib import suppress
from dataclasses import dataclass, field, replace

from armwise.agent.config import AppConfig
from armwise.agent.learning import (
    PolicyHistory,
    Recipe,
    active_recipe,
    earlier_checkpoint,
    list_known_arms,
    live_arms,
    restore_policy,
)
from armwise.agent.policies import Policy, PolicyError
from armwise.agent.routers import RouterError
from armwise.agent.serving.router_scores import RouterScorer, Scorers
from armwise.agent.turn import Canary
from armwise.feedback.budget import Price
from armwise.feedback.drift import Alarms, read_alarms
from armwise.feedback.guard import Returned
from armwise.feedback.log import Store
from armwise.feedback.registry import (
    ActivePolicy,
    Version,
    active_policy,
    guards,
    prices,
    promotions,
    versions,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServedVersion:
    """A version with its policy and router, loaded and ready to decide."""

    version: Version
    policy: Policy
    scorer: RouterScorer | None = None


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """What a replica serves after a refresh.

    Attributes:
        served: The version that decides, once there is one.
        active: The promotions that hold. `served` differs from its pinned version while that cannot be
            loaded.
        canaries: The candidates that take a share and could be loaded.
        alarms: Drift alarms; none where drift is not watched.
        price: Price of a unit of cost under the budget; None: no budget, or no request under it yet.
        returned: Classes of requests that the guard has sent back to its reference.
    """

    served: ServedVersion | None
    active: ActivePolicy
    canaries: tuple[Canary, ...] = ()
    alarms: Alarms = field(default_factory=Alarms)
    price: Price | None = None
    returned: Returned = field(default_factory=Returned)

    @property
    def follows(self) -> bool:
        """Whether the served version is the one that the promotions call for."""
        if self.served is None:
            return False
        served, pin = self.served.version, self.active.pin
        return served.recipe == self.active.recipe if pin is None else served.version == pin.version


class Versions:
    """The versions of the policy: reads from the log which one to serve.

    Args:
        store: The log.
        config: Has the configured recipe, which is active until another one is promoted.
        scorers: Loads the routers of versions.

    Attributes:
        configured: The recipe of the configuration.
        recipe: The active recipe, as of the last read.
        empty: A policy of the active recipe before any learning.
        arms: Names of the live and the former arms, which a policy may name.
        state: The state to serve, as of the last refresh.
        active: The promotions that hold, as of the last refresh.
        served: The version that decides, once there is one: the version of `state` as soon as its arms are
            built.
        history: Policies of earlier versions.
    """

    def __init__(self, store: Store, config: AppConfig, scorers: Scorers) -> None:
        self._store, self._config, self._scorers = store, config, scorers
        self.arms = list(config.actions)
        self.configured = Recipe.from_config(config)
        self.recipe = self.configured
        self.empty = self.recipe.build(self.arms)
        self.active = ActivePolicy(self.configured.digest)
        self.state = ReplicaState(None, self.active)
        self.served: ServedVersion | None = None
        self.history = PolicyHistory(store, config.reward)
        self._promoted = (
            self.recipe.digest,
            0,
        )  # the promoted recipe, and the arms that it was checked for
        self._unreadable = (0, 0)  # the last version that could not be loaded, and the promotion that pins it
        self._pin: tuple[int, promotions.Promotion | None] = (0, None)  # last rollback; None: not buildable
        self._canaries: dict[int, tuple[int, Canary | None]] = {}  # by version: its last row, and its policy

    @property
    def version(self) -> Version | None:
        """The version that decides, once there is one."""
        return None if self.served is None else self.served.version

    @property
    def scorer(self) -> RouterScorer | None:
        """The router of the served version; before there is a version, the configured router."""
        return self._scorers.configured if self.served is None else self.served.scorer

    async def follow(self, state: ReplicaState) -> None:
        """Accept a state that was read, if all routers in it can score."""
        self.active = state.active
        scorers = state.served and state.served.scorer, *(canary.scorer for canary in state.canaries)
        if await self._scorers.warm_up_all(scorer for scorer in scorers if isinstance(scorer, RouterScorer)):
            self.state = state
        else:
            self.state = replace(state, served=self.state.served, canaries=self.state.canaries)

    def read(self, served: ServedVersion | None) -> ReplicaState:
        """Return the state to serve from now on; it keeps `served` until another version can be loaded.

        Args:
            served: The version of the previous read.

        Raises:
            LogUnavailableError: The log cannot be read now.
        """
        budget, drift = self._config.budget, self._config.drift
        active = active_policy(self._store, self.configured.digest)
        promoted = active.recipe, live_arms(self._store, self._config).seq
        if promoted != self._promoted:
            self.recipe = active_recipe(self._store, self._config, active)
            self.arms, self._promoted = list_known_arms(self._store, self._config), promoted
            self.empty = self.recipe.build(self.arms)
        pin, recipe = self._find_pin(active), self.recipe.digest
        ours = served is not None and served.version.recipe == recipe
        number = served.version.version if served else 0
        if pin is None:
            version = versions.latest(self._store, recipe, number if ours else 0)
        else:
            version = None if pin.version == number else versions.find(self._store, pin.version)
        loaded = None if version is None else self._load(version, pin)
        if version is not None and loaded is None and pin is None and not ours:
            earlier = earlier_checkpoint(self._store, self.empty, version)
            with suppress(RouterError):  # logged by _load
                loaded = (
                    None if earlier is None else ServedVersion(*earlier, self._scorers.find(version.router))
                )
        self._canaries = {
            promotion.version: (promotion.seq, self._canary_for(promotion)) for promotion in active.canaries
        }
        canaries = tuple(canary for _, canary in self._canaries.values() if canary is not None)
        alarms = Alarms() if drift is None else read_alarms(self._store, self._config.reward.join, active)
        price = None if budget is None else prices.latest(self._store, budget)
        guard = self._config.guard
        returned = Returned()
        if guard is not None:
            returned = guards.read_returned(self._store, guard.name(self._config.reward.join))
        return ReplicaState(loaded or served, active, canaries, alarms, price, returned)

    def _find_pin(self, active: ActivePolicy) -> promotions.Promotion | None:
        """Return the rollback that holds, if its version can be built here."""
        pin = active.pin
        if pin is not None and pin.seq != self._pin[0]:
            version = versions.find(self._store, pin.version)
            assert version is not None  # a promotion names a version that was published
            try:
                self._make_empty(version)
                self._pin = pin.seq, pin
            except PolicyError as error:
                logger.warning(
                    "version %d was promoted but cannot be served, so it is skipped: %s",
                    version.version,
                    error,
                )
                self._pin = pin.seq, None
        return None if pin is None else self._pin[1]

    def _canary_for(self, promotion: promotions.Promotion) -> Canary | None:
        """Return a canary, None if it cannot be loaded; a lost checkpoint is relearned once per promotion."""
        seq, canary = self._canaries.get(promotion.version, (0, None))
        if canary is not None and seq == promotion.seq:
            return canary
        if canary is not None:
            return replace(canary, share=promotion.share)
        first, version = seq != promotion.seq, versions.find(self._store, promotion.version)
        assert version is not None  # a promotion names a version that was published
        try:
            policy, scorer = self._restore(version, relearn=first)
        except PolicyError as error:
            if first:
                logger.warning("%s; this candidate gets no traffic, although it was given a share", error)
            return None
        return Canary(policy, version.version, promotion.share, scorer)

    def _load(self, version: Version, pin: promotions.Promotion | None) -> ServedVersion | None:
        """Return a version with its policy, None if it cannot be loaded, which is logged once.

        A pinned version whose checkpoint is lost is relearned, because no other may be served. That may take
        minutes, and is tried once per promotion.
        """
        candidate = version.version, pin.seq if pin else 0
        try:
            relearn = pin is not None and candidate != self._unreadable
            return ServedVersion(version, *self._restore(version, relearn=relearn))
        except PolicyError as error:
            # A pruned version has a newer one; a damaged one, or one of another library, is soon replaced.
            if candidate != self._unreadable:
                stays = (
                    "the version before it stays in service"
                    if pin is None
                    else "it was promoted: promote another version"
                )
                logger.warning("%s; %s", error, stays)
                self._unreadable = candidate
            return None

    def _restore(self, version: Version, *, relearn: bool) -> tuple[Policy, RouterScorer | None]:
        """Return the policy of a version, and its router. Raises PolicyError."""
        rule, empty = self._config.reward, self._make_empty(version)
        try:
            scorer = self._scorers.find(version.router)
        except RouterError as error:
            raise PolicyError(f"the router of version {version.version}: {error}") from None
        policy = restore_policy(self._store, version, rule, self.arms, empty=empty, relearn=relearn)
        return policy, scorer

    def _make_empty(self, version: Version) -> Policy:
        """Return a policy of a version's recipe before any learning. Raises PolicyError."""
        if version.recipe == self.recipe.digest:
            return self.empty
        return self.require_servable(Recipe.from_version(version, self._config.reward))

    def require_servable(self, recipe: Recipe) -> Policy:
        """Return a policy of a recipe before any learning, if it can decide here. Raises PolicyError."""
        return recipe.require_servable(self._store, self._config)
