"""Rebuild: what the log teaches, made again from its facts alone, and compared with what is there.

The training log is folded from the first fact on, and the policy learns it from nothing, as a
learner would that had never been stopped. Equal logs give equal digests: where they differ, either
was changed, or another library has learned.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from rich.table import Table

from agent.config import AppConfig
from agent.learner import earlier, recipe_of, restore, teach
from agent.policies.catalog import PolicySpec, build_policy
from agent.policy import Policy, PolicyError
from feedback.errors import LogGapError
from feedback.joins import REBUILD, confirm_epoch, read_examples, take_epoch
from feedback.lag import applied_by
from feedback.refold import Refold
from feedback.reward import RewardRule
from feedback.store import Store
from feedback.versions import (
    Version,
    add,
    checkpoint,
    counts,
    digest_of,
    find,
    is_kept,
    kept_of,
    latest,
    put_back,
)

SHORT = 12
"""Digits of a digest that tell it from others."""


MENDS = "to put what the log gives in the place of what differs: `armwise rebuild`, without --verify"
STAYS = (
    "not mended: a version that has decided stays as it is, and the newest one has learned what the log "
    "gives; one that has learned more than is joined can be compared once a learner has joined the rest"
)


class RebuildError(ValueError):
    """What is asked for cannot be rebuilt; the message says why."""


def rebuilt(store: Store, empty: Policy, rule: RewardRule, version: Version) -> Policy:
    """Return the policy of a version, learned again where its bytes are lost.

    Args:
        store: The log.
        empty: A policy as the version's specification builds it.
        rule: How rewards are made.
        version: What was published.

    Raises:
        PolicyError: Its bytes are lost, and what the log gives now is another policy.
        LogUnavailableError: Try again later.
    """
    try:
        return restore(empty, version, checkpoint(store, version.version))
    except PolicyError as error:
        lost = error
    if recipe_of(PolicySpec.model_validate(version.policy), rule) != version.recipe:
        raise PolicyError(f"{lost}, and it was learned by another reward than the one that is configured")
    policy, learned = earlier(store, empty, version)
    try:
        teach(policy, rule, read_examples(store, rule.join, learned, version.examples_seq))
    except LogGapError as gap:
        raise PolicyError(f"{lost}, and it cannot be learned again: {gap}") from gap
    state = policy.save()
    if digest_of(state) != version.digest:
        raise PolicyError(
            f"{lost}, and the log gives another state now, {digest_of(state)[:SHORT]}: it was learned by "
            "another library, or the training log was changed; see `armwise rebuild --verify`"
        )
    return empty.load(state)  # as every replica has it


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
class Report:
    """What came out.

    Attributes:
        compared: The training log, and versions of the configuration's recipe.
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
                one.what, f"{one.upto:,}", one.expected[:SHORT] or "none", one.found[:SHORT] or "none", equal
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
) -> Report:
    """Compare the training log and the newest version with what the log gives.

    Args:
        store: The log.
        config: Says which recipe is looked at: versions of others cannot be learned by it.
        tell: Told how many facts are folded, and how many will be.
        number: A version to compare, too.
        every: Compare every version whose bytes are kept, too.
        mend: Put what the log gives in the place of what differs, under a new epoch, so that a
            learner that runs starts again. A version that has learned something else stays as it
            is, since it has decided; if it is the newest, a newer one follows it.
        clock: Seconds since the epoch.

    Raises:
        RebuildError: There is no such version of the configuration's recipe.
        LogGapError: Facts are missing: nothing can be rebuilt, and nothing was changed.
        LogUnavailableError: Try again later.
        SupersededError: A learner has started meanwhile: again, then, which finds less to be done.
    """
    recipe = recipe_of(config.policy, config.reward)
    versions = _chosen(store, recipe, number, every=every)
    refold = Refold(store, config.reward)
    replay = _Replay(store, build_policy(config.policy, list(config.actions)), config.reward)
    replay.learn(refold, tell, versions)
    others = _others(store, recipe)
    newest = max(versions, key=lambda version: version.version, default=None)
    epoch = 0
    if mend and not (refold.sound and not replay.lost and not (newest and newest.version in replay.wrong)):
        epoch = take_epoch(store, REBUILD, clock())  # what learners wrote before it is compared, too
        newest, known = latest(store, recipe), newest
        replay.learn(refold, tell, [newest] if newest and newest != known else [])
    compared = [Compared("training log", refold.position.examples_seq, *refold.digests), *replay.compared]
    notes = [note for note in (refold.first, others) if note]
    if epoch:
        replaced = newest if newest and newest.version in replay.wrong else None
        refold.repair(epoch)
        with store.writing() as connection:
            confirm_epoch(connection, epoch)
            refold.finish(connection)
            for version, state in replay.lost.items():
                put_back(connection, version, state)
            if replaced is not None:
                draft = replace(
                    replaced,
                    parent=replaced.version,
                    examples_seq=replay.learned,
                    applied_seq=applied_by(connection, config.reward.join, replay.learned),
                    digest=digest_of(replay.state),
                    epoch=epoch,
                    created_at=clock(),
                )
                follower = add(connection, draft, replay.state)
                notes.append(f"version {follower} has learned what the log gives, and follows the others")
        left = replay.wrong - ({replaced.version} if replaced else set())
        compared = [
            replace(one, mended=bool(one.expected) and not one.equal and one.version not in left)
            for one in compared
        ]
        notes.append(f"mended under epoch {epoch}: a learner that ran stops, and its service starts another")
    return Report(tuple(compared), tuple(notes), STAYS if mend else MENDS)


class _Replay:
    """A policy that learns the log from nothing, and is compared with versions as it comes past them.

    Attributes:
        learned: Examples that it has learned.
        compared: What came out.
        wrong: Versions that have learned something else than what the log gives.
        lost: Bytes that ought to be kept, and are not, by version.
    """

    def __init__(self, store: Store, policy: Policy, rule: RewardRule) -> None:
        self._store, self._policy, self._rule = store, policy, rule
        self.learned = 0
        self.compared: list[Compared] = []
        self.wrong: set[int] = set()
        self.lost: dict[int, bytes] = {}

    @property
    def state(self) -> bytes:
        """What it is now."""
        return self._policy.save()

    def learn(self, refold: Refold, tell: Callable[[int, int], None], versions: Sequence[Version]) -> None:
        """Learn what is folded, and compare each version after as many examples as it has learned."""
        due = deque(sorted(versions, key=lambda version: version.examples_seq))
        for example in chain((None,), refold.examples(tell)):
            if example is not None:
                teach(self._policy, self._rule, (example,))
                self.learned = example.seq
            while due and due[0].examples_seq <= self.learned:
                self._compare(due.popleft())
        for version in due:
            expected = ""
            if version.applied_seq <= refold.position.log_seq:  # it has seen no more of the log than this
                expected = digest_of(self.state)
                self.wrong.add(version.version)
            self._note(version, f"version {version.version}", expected, version.digest)

    def _compare(self, version: Version) -> None:
        state = self.state
        digest, kept = digest_of(state), checkpoint(self._store, version.version)
        self._note(version, f"version {version.version}", digest, version.digest)
        if digest != version.digest:
            self.wrong.add(version.version)
            return
        found = "" if kept is None else digest_of(kept)
        newest = latest(self._store)
        if found != digest and (found or (newest and is_kept(version.version, newest.version))):
            self._note(version, f"bytes of version {version.version}", digest, found)
            self.lost[version.version] = state

    def _note(self, version: Version, what: str, expected: str, found: str) -> None:
        self.compared.append(Compared(what, version.examples_seq, expected, found, version.version))


def _chosen(store: Store, recipe: str, number: int | None, *, every: bool) -> list[Version]:
    """Return the newest version of a recipe, and those that are asked for. Raises RebuildError."""
    chosen = kept_of(store, recipe) if every else []
    newest = latest(store, recipe)
    if newest is not None:
        chosen.append(newest)
    if number is not None:
        named = find(store, number)
        if named is None:
            raise RebuildError(f"there is no version {number}; the newest is {newest and newest.version}")
        if named.recipe != recipe:
            raise RebuildError(
                f"version {number} is of recipe {named.recipe[:SHORT]}, and the configuration is of "
                f"{recipe[:SHORT]}: give the configuration that it was learned under"
            )
        chosen.append(named)
    return list({version.version: version for version in chosen}.values())


def _others(store: Store, recipe: str) -> str | None:
    """Say which versions are not looked at, whatever is asked for; None where there are none."""
    others = {other: n for other, n in counts(store).items() if other != recipe}
    if not others:
        return None
    named = ", ".join(f"{n} of {other[:SHORT]}" for other, n in sorted(others.items()))
    return f"not looked at, as other configurations have learned them: {named}"


__all__ = ["Compared", "RebuildError", "Report", "rebuild", "rebuilt"]
