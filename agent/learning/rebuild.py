"""Rebuild the training log and the versions from the facts of the log, and compare them with the stored ones.

The training log is folded from the first fact on, and the policy learns it from the start, like a learner
that was never stopped. With the same arithmetic, a digest that differs means that a state was changed.
Versions that another processor, or another version of a library, has computed are compared by their numbers,
which may differ by `TOLERANCE`.
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import inf

from rich.table import Table

from armwise.agent.config import AppConfig
from armwise.agent.learning.arithmetic import arithmetic
from armwise.agent.learning.recipe import DIGEST_CHARS, Recipe, active_recipe, known_arms
from armwise.agent.learning.restore import train_on
from armwise.agent.policies import PolicyError, difference
from armwise.feedback.events import Example
from armwise.feedback.log import Store, erasures
from armwise.feedback.registry import Version
from armwise.feedback.registry import versions as registry_versions
from armwise.feedback.training_log import (
    REBUILD,
    Position,
    Refold,
    StartingPoint,
    confirm_epoch,
    examples,
    lag,
    observed,
    read_examples,
    rollups,
    router_contexts,
    take_epoch,
)

TOLERANCE = 1e-6
"""Largest relative difference of two numbers of equal states that two kernels of BLAS have computed.

A single product differs by 1e-16; a policy adds thousands of them.
"""

REPAIR_HINT = "to put what the log gives in the place of what differs: `armwise rebuild`, without --verify"

UNREPAIRED_HINT = (
    "not mended: versions that served are compared byte for byte; the newest must equal a fold of the whole "
    "log; a version ahead of the join is compared after the next join"
)


class RebuildError(ValueError):
    """The requested version cannot be rebuilt; the message says why."""


@dataclass(frozen=True, slots=True)
class ComparedDigest:
    """A state rebuilt from the log, compared with the stored one.

    Attributes:
        what: Name of the state.
        upto: Rows of the training log that the state covers.
        expected: Digest of the rebuilt state; empty if the log is not joined that far.
        found: Digest of the stored state; empty if it is missing.
        version: Number of the version; None: the training log.
        mended: Whether the stored state was replaced by the rebuilt one.
        elsewhere: Whether another arithmetic computed the stored state, so that digests may differ.
        difference: Largest relative difference of the numbers of both states, if `elsewhere` and the stored
            bytes are kept.
    """

    what: str
    upto: int
    expected: str
    found: str
    version: int | None = None
    mended: bool = False
    elsewhere: bool = False
    difference: float | None = None

    @property
    def equal(self) -> bool:
        """Whether both are the same state, up to rounding if another arithmetic computed the stored one."""
        if self.expected == self.found:
            return True
        return self.elsewhere and (self.difference is None or self.difference <= TOLERANCE)

    @property
    def verdict(self) -> str:
        """The result of the comparison, in words."""
        if not self.equal:
            return "no, mended" if self.mended else "no"
        if self.expected == self.found:
            return "yes"
        if self.difference is None:
            return "not known: of another processor, its bytes are pruned"
        return f"yes, up to {max(self.difference, 1e-16):.0e}"


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """Result of a rebuild.

    Attributes:
        compared: The training log, and versions of the active or the requested recipe.
        notes: Remarks, one sentence each.
        remedy: What to do if a state is not sound.
    """

    compared: tuple[ComparedDigest, ...]
    notes: tuple[str, ...]
    remedy: str

    @property
    def sound(self) -> bool:
        """Whether every stored state is equal to the rebuilt one, or was replaced by it."""
        return all(comparison.equal or comparison.mended for comparison in self.compared)

    def table(self) -> Table:
        """Return the comparison as a table."""
        table = Table("what", "rows", "from the log", "found", "equal", title="rebuilt from the log")
        for comparison in self.compared:
            table.add_row(
                comparison.what,
                f"{comparison.upto:,}",
                comparison.expected[:DIGEST_CHARS] or "none",
                comparison.found[:DIGEST_CHARS] or "none",
                comparison.verdict,
            )
        return table


def rebuild(
    store: Store,
    config: AppConfig,
    on_progress: Callable[[int, int], None],
    *,
    number: int | None = None,
    every: bool = False,
    mend: bool = False,
    clock: Callable[[], float] = time.time,
) -> RebuildReport:
    """Rebuild the training log and the newest version, and compare them with the stored ones.

    Args:
        store: The log.
        config: Has the configured recipe, which is active until another one is promoted.
        on_progress: Called with the number of facts folded, and of all facts.
        number: A further version to compare, of any recipe with the configured reward, such as a candidate.
        every: Whether to compare every version of the active recipe whose checkpoint is kept.
        mend: Whether to replace differing state by the rebuilt one, under a new epoch, so that a running
            learner starts again, and to add up the sums of the console again. A version that has decided
            stays as it is; if it is the newest, a newer version follows it.
        clock: Seconds since the epoch.

    Raises:
        RebuildError: There is no such version with the configured reward, or it cannot be built.
        LogGapError: Facts are missing, so that a rebuild is impossible; nothing was changed.
        LogUnavailableError: Try again later.
        SupersededError: A learner has started meanwhile; call again.
    """
    replays, newest = _replays(store, config, number, every=every)
    replay, refold = replays[0], Refold(store, config.reward)
    _replay(refold, on_progress, replays)
    others = _others(store, {run.recipe.digest for run in replays})
    epoch = 0
    damaged = any(run.lost for run in replays) or (newest is not None and newest.version in replay.wrong)
    if mend and (damaged or not refold.sound):
        epoch = take_epoch(store, REBUILD, clock())  # reads everything that earlier learners wrote
        newest, previous = registry_versions.latest(store, replay.recipe.digest), newest
        if newest is not None and newest != previous:
            replay.expect([newest])
        _replay(refold, on_progress, replays)
    notes = [note for note in (refold.first, others, _erased(store, replay), _elsewhere(replays)) if note]
    if epoch:
        refold.repair(epoch)
    if not refold.sound:
        replays = _observed_again(replays, refold.position, notes, repaired=epoch > 0)
        replay = replays[0]
    compared = [ComparedDigest("training log", refold.position.examples_seq, *refold.digests)]
    compared += [comparison for run in replays for comparison in run.compared]
    if epoch:
        replaced = newest if newest and newest.version in replay.wrong else None
        follower = _store_rebuilt(store, refold, replays, replaced, epoch, clock)
        if follower is not None:
            notes.append(f"version {follower} has learned what the log gives, and follows the others")
        left = {number for run in replays for number in run.wrong} - {replaced.version if replaced else 0}
        compared = [
            replace(
                comparison,
                mended=bool(comparison.expected) and not comparison.equal and comparison.version not in left,
            )
            for comparison in compared
        ]
        notes.append(f"mended under epoch {epoch}: a learner that ran stops, and its service starts another")
    return RebuildReport(tuple(compared), tuple(notes), _remedy(store, config, mend=mend))


def _replays(
    store: Store, config: AppConfig, number: int | None, *, every: bool
) -> tuple[list["_Replay"], Version | None]:
    """Return a replay of each recipe with its versions to compare, the active one first.

    Returns:
        The replays, and the newest version of the active recipe.

    Raises:
        RebuildError: There is no version of this number that can be built.
    """
    recipe, arms = active_recipe(store, config), known_arms(store, config)
    replay, newest = _Replay(store, recipe, arms), registry_versions.latest(store, recipe.digest)
    replays, versions = [replay], registry_versions.list_kept(store, recipe.digest) if every else []
    versions += [newest] if newest else []
    if number is not None:
        named = _named(store, config, number)
        if named.recipe == recipe.digest:
            versions.append(named)
        else:
            replays.append(_Replay(store, Recipe.of(named, config.reward), arms))
            replays[1].expect([named])
    replay.expect(versions)
    return replays, newest


def _store_rebuilt(
    store: Store,
    refold: Refold,
    replays: Sequence["_Replay"],
    replaced: Version | None,
    epoch: int,
    clock: Callable[[], float],
) -> int | None:
    """Store the rebuilt state in the place of what differs.

    Args:
        store: The log.
        refold: The training log, folded again.
        replays: Their missing checkpoints are stored; the first is of the active recipe.
        replaced: The newest version of the active recipe, if its state differs.
        epoch: The epoch of the rebuild.
        clock: Seconds since the epoch.

    Returns:
        The version that follows `replaced`; None without one.
    """
    replay = replays[0]
    with store.writing() as connection:
        confirm_epoch(connection, epoch)
        refold.finish(connection)
        for version, state in (pair for run in replays for pair in run.lost.items()):
            registry_versions.store_checkpoint(connection, version, state)
        if replaced is None:
            return None
        draft = replace(
            replaced,
            parent=replaced.version,
            examples_seq=replay.learned,
            applied_seq=lag.applied_by(connection, replay.recipe.reward.join, replay.learned),
            digest=registry_versions.digest_state(replay.state),
            epoch=epoch,
            created_at=clock(),
        )
        return registry_versions.add(connection, draft, replay.state)


def _remedy(store: Store, config: AppConfig, *, mend: bool) -> str:
    """Return what to do if a state is not sound; with `mend`, add up the sums of the console again."""
    if not mend:
        return REPAIR_HINT
    rollups.clear(store)
    while rollups.advance(store, config.reward).left:
        pass
    return UNREPAIRED_HINT


class _Replay:
    """Learns a recipe from the start, and compares each expected version at its position.

    Attributes:
        learned: Position in the training log of the last example learned.
        compared: Comparisons so far.
        wrong: Versions whose state differs from the rebuilt one.
        lost: Rebuilt bytes of checkpoints that should be kept and are missing, by version.
    """

    def __init__(self, store: Store, recipe: Recipe, arms: Sequence[str]) -> None:
        start = recipe.start or StartingPoint()
        self.recipe, self._arms = recipe, arms
        self._store, self._policy = store, recipe.build(arms)
        train_on(
            self._policy, recipe.reward, examples.read_labels(store, recipe.reward, start, recipe.router)
        )
        self.learned = start.after
        self._beside: observed.WithObservations | None = None
        if start.also is not None:
            self._beside = observed.WithObservations(
                store, recipe.reward, start.also, start.after, start.after, recipe.router
            )
        self.compared: list[ComparedDigest] = []
        self.wrong: set[int] = set()
        self.lost: dict[int, bytes] = {}
        self._expected: list[Version] = []
        self._due: deque[Version] = deque()

    @property
    def observes(self) -> bool:
        """Whether it learns observations, whose order and weights come from the training log."""
        return self._beside is not None

    @property
    def reads_questions(self) -> bool:
        """Whether the policy reads the texts of questions."""
        return getattr(self._policy, "reads_question", False)

    @property
    def state(self) -> bytes:
        """The state of the policy now."""
        return self._policy.save()

    def expect(self, versions: Sequence[Version]) -> None:
        """Add versions to compare, each at its position in the training log."""
        due = {version.version: version for version in versions}
        self._expected.extend(versions)
        self._due.extend(sorted(due.values(), key=lambda version: version.examples_seq))
        self._compare_due()

    def learn(self, some: Sequence[Example]) -> None:
        """Learn the examples among the next ones that the recipe includes."""
        for example in router_contexts.with_router(self._store, some, self.recipe.router):
            if example.seq > self.learned:
                new = (example,) if self._beside is None else self._beside.follow((example,))
                of_no_run = (
                    new_example for new_example in new if examples.find_run(new_example.decision) is None
                )
                train_on(self._policy, self.recipe.reward, of_no_run)
                self.learned = example.seq
                self._compare_due()

    def finish(self, position: Position) -> None:
        """Record the versions that have learned more examples than the log gives."""
        for version in self._due:
            expected = ""
            if version.applied_seq <= position.log_seq:  # the log is joined as far as it was for this version
                expected = registry_versions.digest_state(self.state)
                self.wrong.add(version.version)
            self._note(version, f"version {version.version}", expected, version.digest)
        self._due.clear()

    def again(self, position: Position) -> "_Replay":
        """Return a new replay of the repaired training log, with the same versions to compare."""
        replay = _Replay(self._store, self.recipe, self._arms)
        replay.expect(self._expected)
        rest = read_examples(self._store, self.recipe.reward.join, upto=position.examples_seq)
        while some := list(islice(rest, router_contexts.CHUNK)):
            replay.learn(some)
        replay.finish(position)
        return replay

    def _compare_due(self) -> None:
        while self._due and self._due[0].examples_seq <= self.learned:
            self._compare(self._due.popleft())

    def _compare(self, version: Version) -> None:
        state, kept = self.state, registry_versions.checkpoint(self._store, version.version)
        digest = registry_versions.digest_state(state)
        if digest != version.digest:
            comparison = self._compared_elsewhere(version, kept, state)
            self.compared.append(comparison)
            if not comparison.equal:
                self.wrong.add(version.version)
            return
        self._note(version, f"version {version.version}", digest, version.digest)
        stored_digest = "" if kept is None else registry_versions.digest_state(kept)
        newest = registry_versions.latest(self._store)
        if stored_digest != digest and (
            stored_digest or (newest and registry_versions.is_kept(version.version, newest.version))
        ):
            self._note(version, f"bytes of version {version.version}", digest, stored_digest)
            self.lost[version.version] = state

    def _compared_elsewhere(self, version: Version, kept: bytes | None, state: bytes) -> ComparedDigest:
        """Compare a version with the rebuilt state by digest, or by numbers if computed elsewhere."""
        elsewhere, apart = not registry_versions.computed_alike(self._store, version, arithmetic()), None
        if elsewhere and kept is not None:
            damaged = registry_versions.digest_state(kept) != version.digest
            apart = inf if damaged else difference(kept, state)
        rebuilt = registry_versions.digest_state(state)
        what = f"version {version.version}"
        return ComparedDigest(
            *(what, version.examples_seq, rebuilt, version.digest, version.version),
            elsewhere=elsewhere,
            difference=apart,
        )

    def _note(self, version: Version, what: str, expected: str, actual: str) -> None:
        self.compared.append(ComparedDigest(what, version.examples_seq, expected, actual, version.version))


def _replay(refold: Refold, on_progress: Callable[[int, int], None], replays: Sequence[_Replay]) -> None:
    """Learn the folded examples, and compare each version at its position."""
    rest = refold.examples(on_progress)
    while some := list(islice(rest, router_contexts.CHUNK)):
        for replay in replays:
            replay.learn(some)
    for replay in replays:
        replay.finish(refold.position)


def _observed_again(
    replays: list[_Replay], position: Position, notes: list[str], *, repaired: bool
) -> list[_Replay]:
    """Repeat replays that learn observations, after a damaged training log was repaired."""
    if repaired:
        return [replay.again(position) if replay.observes else replay for replay in replays]
    if any(replay.observes for replay in replays):
        notes.append("versions that learn observations are compared once the training log is mended")
    return replays


def _named(store: Store, config: AppConfig, number: int) -> Version:
    """Return the requested version. Raises RebuildError."""
    named = registry_versions.find(store, number)
    if named is None:
        newest = registry_versions.latest(store)
        raise RebuildError(f"there is no version {number}; the newest is {newest and newest.version}")
    try:
        Recipe.of(named, config.reward).require_servable(store, config)
    except PolicyError as error:
        raise RebuildError(f"{error}: give the configuration that it was learned under") from None
    return named


def _erased(store: Store, replay: _Replay) -> str | None:
    """Return a note on decisions whose texts were erased, if there are any."""
    if not (n := sum(erasure.decisions for erasure in erasures.erasures(store))):
        return None
    if replay.reads_questions:
        return f"{n:,} decisions have no texts any more, which this policy reads: that part differs"
    return f"{n:,} decisions have no texts any more: they were erased, and are learned from their features"


def _elsewhere(replays: Sequence[_Replay]) -> str | None:
    """Return a note on versions that were computed with another arithmetic, if there are any."""
    apart = [comparison for run in replays for comparison in run.compared if comparison.elsewhere]
    if not apart:
        return None
    return (
        f"{len(apart)} versions were computed by another processor or other libraries than those of here "
        f"({arithmetic()}): compared by their numbers, up to {TOLERANCE:g}, and not to the bit"
    )


def _others(store: Store, compared: Collection[str]) -> str | None:
    """Return a note on versions of other recipes, which are left out, if there are any."""
    others = {other: n for other, n in registry_versions.counts(store).items() if other not in compared}
    if not others:
        return None
    named = ", ".join(f"{n} of {other[:DIGEST_CHARS]}" for other, n in sorted(others.items()))
    return f"not compared, as they are of other recipes: {named}"
