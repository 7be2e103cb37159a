"""Rebuild the training log and the versions from the facts of the log, and compare them with the stored ones.

The training log is folded from the first fact on, and the policy learns it from the start, as a learner that
was never stopped would. Equal logs give equal digests where the arithmetic is the same: where they differ,
one of them was changed. Versions that another processor, or another version of a library, has computed are
compared by their numbers, which may differ by `TOLERANCE`.
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

One product differs by 1e-16, and a policy adds thousands of them.
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
    """A digest rebuilt from the log beside the stored one.

    Attributes:
        what: What was compared.
        upto: Rows of the training log behind it.
        expected: Digest of the rebuilt state; empty where the log has not been joined so far.
        found: Digest of the stored state; empty where there is none.
        version: The version; None for the training log.
        mended: Whether the stored state was replaced by the rebuilt one.
        elsewhere: Whether it was computed with another arithmetic, where the digests need not be equal.
        difference: Largest relative difference of the numbers of both states, for one of another arithmetic;
            None where it is not compared so, or its bytes are not kept.
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
        """Whether both are the same state: up to rounding, where another arithmetic computed it."""
        if self.expected == self.found:
            return True
        return self.elsewhere and (self.difference is None or self.difference <= TOLERANCE)

    @property
    def verdict(self) -> str:
        """Whether both are equal, in words."""
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
        remedy: What to do where not all is sound.
    """

    compared: tuple[ComparedDigest, ...]
    notes: tuple[str, ...]
    remedy: str

    @property
    def sound(self) -> bool:
        """Whether everything stored is now what the log gives."""
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
    """Compare the training log and the newest version with what the log gives.

    Args:
        store: The log.
        config: Names the configured recipe, which is active unless another one was promoted under it.
        on_progress: Called with the number of facts folded, and of all facts.
        number: A further version to compare, of that recipe or of another one with the configured
            reward, such as a candidate.
        every: Whether every version of the active recipe whose checkpoint is kept is compared.
        mend: Whether differing state is replaced by the rebuilt one, under a new epoch, so that a
            running learner starts again, and the sums of pages are added up again. A version that has
            learned something else stays, since it has decided; if it is the newest, a newer one follows it.
        clock: Seconds since the epoch.

    Raises:
        RebuildError: There is no such version with the configured reward, or it cannot be built.
        LogGapError: Facts are missing: nothing can be rebuilt, and nothing was changed.
        LogUnavailableError: Try again later.
        SupersededError: A learner has started meanwhile; call again.
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
    refold = Refold(store, config.reward)
    _replay(refold, on_progress, replays)
    others = _others(store, {run.recipe.digest for run in replays})
    epoch = 0
    damaged = any(run.lost for run in replays) or (newest is not None and newest.version in replay.wrong)
    if mend and (damaged or not refold.sound):
        epoch = take_epoch(store, REBUILD, clock())  # includes what learners wrote before it
        newest, previous = registry_versions.latest(store, recipe.digest), newest
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
        with store.writing() as connection:
            confirm_epoch(connection, epoch)
            refold.finish(connection)
            for version, state in (pair for run in replays for pair in run.lost.items()):
                registry_versions.store_checkpoint(connection, version, state)
            if replaced is not None:
                draft = replace(
                    replaced,
                    parent=replaced.version,
                    examples_seq=replay.learned,
                    applied_seq=lag.applied_by(connection, config.reward.join, replay.learned),
                    digest=registry_versions.digest_state(replay.state),
                    epoch=epoch,
                    created_at=clock(),
                )
                follower = registry_versions.add(connection, draft, replay.state)
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


def _remedy(store: Store, config: AppConfig, *, mend: bool) -> str:
    """Return what to do where not all is sound; add the sums of pages up again where things are mended."""
    if not mend:
        return REPAIR_HINT
    rollups.clear(store)
    while rollups.advance(store, config.reward).left:
        pass
    return UNREPAIRED_HINT


class _Replay:
    """Learns a recipe from the start, and compares each expected version once it has learned as much.

    Attributes:
        learned: Position of the training log up to which it has learned.
        compared: Comparisons so far.
        wrong: Versions whose state is not what the log gives.
        lost: Checkpoints that should be kept and are not, by version.
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
        """Whether it learns observations, which are placed and weighed by the rows of the training log."""
        return self._beside is not None

    @property
    def reads_questions(self) -> bool:
        """Whether the policy reads texts, and not only features."""
        return getattr(self._policy, "reads_question", False)

    @property
    def state(self) -> bytes:
        """The state of the policy now."""
        return self._policy.save()

    def expect(self, versions: Sequence[Version]) -> None:
        """Compare these versions once it has learned as much as they have."""
        due = {version.version: version for version in versions}
        self._expected.extend(versions)
        self._due.extend(sorted(due.values(), key=lambda version: version.examples_seq))
        self._compare_due()

    def learn(self, some: Sequence[Example]) -> None:
        """Learn the next examples of the training log, as far as the recipe includes them."""
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
        """Return one that has learned the training log from the start, once the log is repaired."""
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
        """Return a version, whose digest is not that of the state, beside it."""
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
    """Learn the folded examples, and compare each version after as many as it has learned."""
    rest = refold.examples(on_progress)
    while some := list(islice(rest, router_contexts.CHUNK)):
        for replay in replays:
            replay.learn(some)
    for replay in replays:
        replay.finish(refold.position)


def _observed_again(
    replays: list[_Replay], position: Position, notes: list[str], *, repaired: bool
) -> list[_Replay]:
    """Compare versions that learn observations, which were read beside a damaged training log, once more."""
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
    """Return a note on decisions whose texts were erased; None for none."""
    if not (n := sum(erasure.decisions for erasure in erasures.erasures(store))):
        return None
    if replay.reads_questions:
        return f"{n:,} decisions have no texts any more, which this policy reads: that part differs"
    return f"{n:,} decisions have no texts any more: they were erased, and are learned from their features"


def _elsewhere(replays: Sequence[_Replay]) -> str | None:
    """Return a note on versions that were computed with another arithmetic; None for none."""
    apart = [comparison for run in replays for comparison in run.compared if comparison.elsewhere]
    if not apart:
        return None
    return (
        f"{len(apart)} versions were computed by another processor or other libraries than those of here "
        f"({arithmetic()}): compared by their numbers, up to {TOLERANCE:g}, and not to the bit"
    )


def _others(store: Store, compared: Collection[str]) -> str | None:
    """Return a note on the versions of other recipes, which are not compared; None for none."""
    others = {other: n for other, n in registry_versions.counts(store).items() if other not in compared}
    if not others:
        return None
    named = ", ".join(f"{n} of {other[:DIGEST_CHARS]}" for other, n in sorted(others.items()))
    return f"not compared, as they are of other recipes: {named}"
