"""Learn again from the facts of the log, and verify what was learned.

`rebuild` deletes what is derived from the facts, the training log, and learns again. Versions stay, as
decisions refer to them: if the newest one is not what the log gives, a version that is follows it.

`verify_states` changes nothing: it joins the facts again, and compares digests. Equal digests are a promise
for one kernel of BLAS and one set of libraries; each version records its own.
"""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from rich.table import Table

from armwise.agent.config import AppConfig
from armwise.agent.learning.arithmetic import arithmetic
from armwise.agent.learning.learner import draft_version
from armwise.agent.learning.recipe import DIGEST_CHARS, Recipe, active_recipe, list_known_arms
from armwise.agent.learning.training import learn
from armwise.agent.policies import Policy, PolicyError
from armwise.feedback.log import Store, erasures
from armwise.feedback.registry import Version, versions
from armwise.feedback.training_log import (
    REBUILD,
    Joiner,
    confirm_epoch,
    delete_training_log,
    find_difference,
    read_position,
    require_gapless,
    summary,
    take_epoch,
)


class RebuildError(ValueError):
    """The requested version cannot be verified; the message says why."""


@dataclass(frozen=True, slots=True)
class VerifiedState:
    """A stored state, compared with what the log gives.

    Attributes:
        what: Name of the state.
        upto: Rows of the training log that it covers.
        difference: How it differs; empty: it is equal.
        version: Number of the version; None: the training log.
        digest: Digest of the version; empty for the training log.
        elsewhere: Whether another kernel or other libraries computed it, so that equality is not promised.
    """

    what: str
    upto: int
    difference: str
    version: int | None = None
    digest: str = ""
    elsewhere: bool = False

    @property
    def equal(self) -> bool:
        """Whether the state is equal to the bit."""
        return not self.difference


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """Result of a verification.

    Attributes:
        states: The training log, and versions of the active or the requested recipe.
        notes: Remarks, one sentence each.
    """

    states: tuple[VerifiedState, ...]
    notes: tuple[str, ...]

    @property
    def sound(self) -> bool:
        """Whether all states are equal for which that is promised."""
        return all(state.equal or state.elsewhere for state in self.states)

    def table(self) -> Table:
        """Return the comparison as a table."""
        table = Table("what", "rows", "digest", "compared with the log", title="verified from the log")
        for state in self.states:
            verdict = "equal" if state.equal else f"differs: {state.difference}"
            table.add_row(state.what, f"{state.upto:,}", state.digest[:DIGEST_CHARS], verdict)
        return table


def rebuild(
    store: Store,
    config: AppConfig,
    on_progress: Callable[[int, int], None],
    clock: Callable[[], float] = time.time,
) -> int | None:
    """Delete the training log of the configured reward, and learn it again from the facts.

    It takes an epoch, so that a running learner stops and its service starts another one. If it is
    interrupted, the next learner or the next rebuild continues.

    Args:
        store: The log.
        config: Has the configured recipe, which is active until another one is promoted.
        on_progress: Called with the number of facts read, and of all facts.
        clock: Seconds since the epoch.

    Returns:
        The number of the version that follows the newest one of the active recipe; None: that is what the
        log gives.

    Raises:
        LogGapError: Facts are missing; nothing was changed.
        LogUnavailableError: Try again later.
        SupersededError: A learner has started meanwhile; call again.
    """
    require_gapless(store)
    recipe, rule = active_recipe(store, config), config.reward
    epoch = take_epoch(store, REBUILD, clock())
    with store.writing() as connection:
        confirm_epoch(connection, epoch)
        delete_training_log(connection, rule.join)
        versions.drop_damaged(connection)
    joiner = Joiner(store, rule, epoch)
    while True:
        position = joiner.advance(clock())
        on_progress(position.log_seq, position.log_seq + joiner.left)
        if not joiner.left:
            break
    summary.clear(store)
    newest = versions.latest(store, recipe.digest)
    if newest is None:
        return None
    policy = recipe.build(list_known_arms(store, config))
    learned = min(newest.examples_seq, position.examples_seq)
    learn(store, recipe, policy, None, learned)
    draft, state = draft_version(store, recipe, policy, learned, newest, epoch, clock)
    if draft.digest == newest.digest and versions.checkpoint(store, newest.version) is not None:
        return None
    return versions.publish(store, draft, state)


def verify_states(
    store: Store,
    config: AppConfig,
    on_progress: Callable[[int, int], None],
    *,
    number: int | None = None,
    every: bool = False,
) -> VerifyReport:
    """Join the facts and learn again, and compare the results with the stored states; change nothing.

    Args:
        store: The log.
        config: Has the configured recipe, which is active until another one is promoted.
        on_progress: Called with the number of facts joined, and of all facts.
        number: A further version to compare, of any recipe with the configured reward, such as a candidate.
        every: Whether to compare every version of the active recipe whose checkpoint is kept; else the
            newest.

    Raises:
        RebuildError: There is no such version with the configured reward, or it cannot be built.
        LogGapError: Facts are missing.
        LogUnavailableError: Try again later.
    """
    recipe = active_recipe(store, config)
    newest = versions.latest(store, recipe.digest)
    wanted = versions.list_kept(store, recipe.digest) if every else []
    wanted += [newest] if newest else []
    if number is not None:
        wanted.append(find_version(store, config, number))
    position, difference = find_difference(store, config.reward, on_progress)
    states = [VerifiedState("training log", position.examples_seq, difference)]
    if difference:
        return VerifyReport(tuple(states), ("versions are compared once the training log is rebuilt",))
    recipes = {recipe.digest: recipe}
    recipes |= {version.recipe: Recipe.from_version(version, config.reward) for version in wanted}
    notes = [_others(store, recipes)]
    for each in recipes.values():
        policy = each.build(list_known_arms(store, config))
        of_recipe = [version for version in wanted if version.recipe == each.digest]
        states += _verify(store, each, policy, of_recipe)
        notes.append(_note_erased(store, policy))
    notes.append(_elsewhere(states))
    return VerifyReport(tuple(states), tuple(dict.fromkeys(filter(None, notes))))


def _verify(store: Store, recipe: Recipe, policy: Policy, some: Sequence[Version]) -> list[VerifiedState]:
    """Learn a recipe from the start, and compare each version at its position."""
    with store.reading() as connection:
        length = read_position(connection, recipe.reward.join).examples_seq
    states, learned = [], None
    due = {version.version: version for version in some}
    for version in sorted(due.values(), key=lambda version: (version.examples_seq, version.version)):
        difference, elsewhere, upto = "", False, min(version.examples_seq, length)
        if upto != learned:
            learn(store, recipe, policy, learned, upto)
            learned = upto
        digest, kept = versions.digest_state(policy.save()), versions.checkpoint(store, version.version)
        if upto < version.examples_seq:
            difference = f"the log gives {length:,} examples"
        elif kept is not None and versions.digest_state(kept) != version.digest:
            difference = "the bytes of its checkpoint were changed"
        elif digest != version.digest:
            difference = f"the log gives {digest[:DIGEST_CHARS]}"
            elsewhere = not versions.is_computed_alike(store, version, arithmetic())
        what = f"version {version.version}"
        states.append(
            VerifiedState(what, version.examples_seq, difference, version.version, version.digest, elsewhere)
        )
    return states


def find_version(store: Store, config: AppConfig, number: int) -> Version:
    """Return a version that can be verified under a configuration. Raises RebuildError."""
    named = versions.find(store, number)
    if named is None:
        newest = versions.latest(store)
        raise RebuildError(f"there is no version {number}; the newest is {newest and newest.version}")
    try:
        Recipe.from_version(named, config.reward).require_servable(store, config)
    except PolicyError as error:
        raise RebuildError(f"{error}: pass the configuration with which it was learned") from None
    return named


def _note_erased(store: Store, policy: Policy) -> str | None:
    """Return a note on decisions whose texts were erased, if there are any."""
    if not (n := sum(erasure.decisions for erasure in erasures.erasures(store))):
        return None
    if getattr(policy, "reads_question", False):
        return f"{n:,} decisions have no texts any more, which this policy reads: that part differs"
    return f"{n:,} decisions have no texts any more: they were erased, and are learned from their features"


def _elsewhere(states: Sequence[VerifiedState]) -> str | None:
    """Return a note on versions that differ and were computed elsewhere, if there are any."""
    if not (n := sum(state.elsewhere for state in states)):
        return None
    return (
        f"{n} versions that differ were computed with another kernel of BLAS or other libraries than "
        f"{arithmetic()}: equal digests are promised only for the same ones"
    )


def _others(store: Store, compared: Collection[str]) -> str | None:
    """Return a note on versions of other recipes, which are left out, if there are any."""
    others = {other: n for other, n in versions.counts(store).items() if other not in compared}
    if not others:
        return None
    named = ", ".join(f"{n} of {other[:DIGEST_CHARS]}" for other, n in sorted(others.items()))
    return f"not compared, as they are of other recipes: {named}"
