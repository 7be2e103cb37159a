"""Rebuild: what the log teaches, made again from its facts alone, and compared with what is there.

The training log is folded from the first fact on, and the policy learns it from nothing, as a
learner would that had never been stopped. Equal logs give equal digests: where they differ, either
was changed, or another library has learned.
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from rich.table import Table

from agent.config import AppConfig
from agent.learning.recipe import DIGEST_CHARS, Recipe, active_recipe
from agent.learning.restore import train_on
from agent.policies import PolicyError
from feedback.events import Example
from feedback.log import Store
from feedback.registry import Version
from feedback.registry import versions as registry_versions
from feedback.training_log import Position, Refold, StartingPoint, epochs, examples, lag, take_epoch

REPAIR_HINT = "to put what the log gives in the place of what differs: `armwise rebuild`, without --verify"

UNREPAIRED_HINT = (
    "not mended: a version that has decided stays as it is, and the newest one has learned what the log "
    "gives; one that has learned more than is joined can be compared once a learner has joined the rest"
)


class RebuildError(ValueError):
    """What is asked for cannot be rebuilt; the message says why."""


@dataclass(frozen=True, slots=True)
class Compared:
    """What the log gives, beside what is there.

    Attributes:
        what: What was compared.
        upto: Rows of the training log that it is made of.
        expected: Digest of what the log gives; empty where its join has not come so far.
        found: Digest of what is there; empty where nothing is.
        version: The version that it is about; None for the training log.
        mended: Whether what the log gives was put in its place.
    """

    what: str
    upto: int
    expected: str
    found: str
    version: int | None = None
    mended: bool = False

    @property
    def equal(self) -> bool:
        """Whether what is there is what ought to be."""
        return self.expected == self.found


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """What came out.

    Attributes:
        compared: The training log, and versions of the recipe that is active, or that was asked for.
        notes: What is to be said of it; one sentence each.
        remedy: What is to be done where all is not sound.
    """

    compared: tuple[Compared, ...]
    notes: tuple[str, ...]
    remedy: str

    @property
    def sound(self) -> bool:
        """Whether all is now as it ought to be."""
        return all(one.equal or one.mended for one in self.compared)

    def table(self) -> Table:
        """Return what was compared as a table."""
        table = Table("what", "rows", "from the log", "found", "equal", title="rebuilt from the log")
        for one in self.compared:
            equal = "yes" if one.equal else "no, mended" if one.mended else "no"
            table.add_row(
                one.what,
                f"{one.upto:,}",
                one.expected[:DIGEST_CHARS] or "none",
                one.found[:DIGEST_CHARS] or "none",
                equal,
            )
        return table


def rebuild(
    store: Store,
    config: AppConfig,
    tell: Callable[[int, int], None],
    *,
    number: int | None = None,
    every: bool = False,
    mend: bool = False,
    clock: Callable[[], float] = time.time,
) -> RebuildReport:
    """Compare the training log and the newest version with what the log gives.

    Args:
        store: The log.
        config: Says which recipe is active, unless another one was promoted under it.
        tell: Told how many facts are folded, and how many will be.
        number: A version to compare, too, of that recipe or of another one with the configured reward,
            such as a candidate.
        every: Compare every version of the recipe that is active whose bytes are kept, too.
        mend: Put what the log gives in the place of what differs, under a new epoch, so that a
            learner that runs starts again. A version that has learned something else stays as it
            is, since it has decided; if it is the newest, a newer one follows it.
        clock: Seconds since the epoch.

    Raises:
        RebuildError: There is no such version with the configured reward, or it cannot be built.
        LogGapError: Facts are missing: nothing can be rebuilt, and nothing was changed.
        LogUnavailableError: Try again later.
        SupersededError: A learner has started meanwhile: again, then, which finds less to be done.
    """
    recipe, arms = active_recipe(store, config), list(config.actions)
    replay, newest = _Replay(store, recipe, arms), registry_versions.latest(store, recipe.digest)
    replays, versions = [replay], registry_versions.kept_of(store, recipe.digest) if every else []
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
    _learn(refold, tell, replays)
    others = _others(store, {one.recipe.digest for one in replays})
    epoch = 0
    damaged = any(one.lost for one in replays) or (newest is not None and newest.version in replay.wrong)
    if mend and (damaged or not refold.sound):
        epoch = take_epoch(store, epochs.REBUILD, clock())  # what learners wrote before it is compared, too
        newest, known = registry_versions.latest(store, recipe.digest), newest
        if newest is not None and newest != known:
            replay.expect([newest])
        _learn(refold, tell, replays)
    compared = [Compared("training log", refold.position.examples_seq, *refold.digests)]
    compared += [found for one in replays for found in one.compared]
    notes = [note for note in (refold.first, others) if note]
    if epoch:
        replaced = newest if newest and newest.version in replay.wrong else None
        refold.repair(epoch)
        with store.writing() as connection:
            epochs.confirm_epoch(connection, epoch)
            refold.finish(connection)
            for version, state in (pair for one in replays for pair in one.lost.items()):
                registry_versions.store_checkpoint(connection, version, state)
            if replaced is not None:
                draft = replace(
                    replaced,
                    parent=replaced.version,
                    examples_seq=replay.learned,
                    applied_seq=lag.applied_by(connection, config.reward.join, replay.learned),
                    digest=registry_versions.digest_of(replay.state),
                    epoch=epoch,
                    created_at=clock(),
                )
                follower = registry_versions.add(connection, draft, replay.state)
                notes.append(f"version {follower} has learned what the log gives, and follows the others")
        left = {number for one in replays for number in one.wrong} - {replaced.version if replaced else 0}
        compared = [
            replace(one, mended=bool(one.expected) and not one.equal and one.version not in left)
            for one in compared
        ]
        notes.append(f"mended under epoch {epoch}: a learner that ran stops, and its service starts another")
    return RebuildReport(tuple(compared), tuple(notes), UNREPAIRED_HINT if mend else REPAIR_HINT)


class _Replay:
    """The policy of a recipe, which learns from nothing, and is compared with versions as it comes past them.

    Args:
        store: The log.
        recipe: What it learns.
        arms: Names of the arms that it may choose among.

    Attributes:
        recipe: What it learns.
        learned: Position of the training log up to which it has.
        compared: What came out.
        wrong: Versions that have learned something else than what the log gives.
        lost: Bytes that ought to be kept, and are not, by version.
    """

    def __init__(self, store: Store, recipe: Recipe, arms: Sequence[str]) -> None:
        start = recipe.start or StartingPoint()
        self.recipe = recipe
        self._store, self._policy = store, recipe.build(arms)
        train_on(self._policy, recipe.reward, examples.labels_of(store, recipe.reward, start))
        self.learned = start.after
        self.compared: list[Compared] = []
        self.wrong: set[int] = set()
        self.lost: dict[int, bytes] = {}
        self._due: deque[Version] = deque()

    @property
    def state(self) -> bytes:
        """What it is now."""
        return self._policy.save()

    def expect(self, versions: Sequence[Version]) -> None:
        """Compare these once it has learned as much as they have."""
        due = {version.version: version for version in versions}
        self._due.extend(sorted(due.values(), key=lambda version: version.examples_seq))
        self._pass()

    def learn(self, example: Example) -> None:
        """Learn the next example of the training log, if it is one that the recipe learns."""
        if example.seq <= self.learned:
            return
        if examples.run_of(example.decision) is None:
            train_on(self._policy, self.recipe.reward, (example,))
        self.learned = example.seq
        self._pass()

    def finish(self, position: Position) -> None:
        """Note of each version that it never came to that it has learned more than the log gives."""
        for version in self._due:
            expected = ""
            if version.applied_seq <= position.log_seq:  # it has seen no more of the log than this
                expected = registry_versions.digest_of(self.state)
                self.wrong.add(version.version)
            self._note(version, f"version {version.version}", expected, version.digest)
        self._due.clear()

    def _pass(self) -> None:
        while self._due and self._due[0].examples_seq <= self.learned:
            self._compare(self._due.popleft())

    def _compare(self, version: Version) -> None:
        state = self.state
        digest, kept = (
            registry_versions.digest_of(state),
            registry_versions.checkpoint(self._store, version.version),
        )
        self._note(version, f"version {version.version}", digest, version.digest)
        if digest != version.digest:
            self.wrong.add(version.version)
            return
        found = "" if kept is None else registry_versions.digest_of(kept)
        newest = registry_versions.latest(self._store)
        if found != digest and (
            found or (newest and registry_versions.is_kept(version.version, newest.version))
        ):
            self._note(version, f"bytes of version {version.version}", digest, found)
            self.lost[version.version] = state

    def _note(self, version: Version, what: str, expected: str, found: str) -> None:
        self.compared.append(Compared(what, version.examples_seq, expected, found, version.version))


def _learn(refold: Refold, tell: Callable[[int, int], None], replays: Sequence[_Replay]) -> None:
    """Learn what is folded, and compare each version after as many examples as it has learned."""
    for example in refold.examples(tell):
        for one in replays:
            one.learn(example)
    for one in replays:
        one.finish(refold.position)


def _named(store: Store, config: AppConfig, number: int) -> Version:
    """Return the version that is asked for. Raises RebuildError."""
    named = registry_versions.find(store, number)
    if named is None:
        newest = registry_versions.latest(store)
        raise RebuildError(f"there is no version {number}; the newest is {newest and newest.version}")
    try:
        Recipe.of(named, config.reward).build(list(config.actions))
    except PolicyError as error:
        raise RebuildError(f"{error}: give the configuration that it was learned under") from None
    return named


def _others(store: Store, looked_at: Collection[str]) -> str | None:
    """Say which versions are not looked at, whatever is asked for; None where there are none."""
    others = {other: n for other, n in registry_versions.counts(store).items() if other not in looked_at}
    if not others:
        return None
    named = ", ".join(f"{n} of {other[:DIGEST_CHARS]}" for other, n in sorted(others.items()))
    return f"not looked at, as they are of other recipes: {named}"
