"""The distributions of candidates on the decisions of a log, in one pass over its contexts.

Those that read no context (`served`, `uniform`, `fixed:<arm>`) are computed as arrays; contexts are read
only if a candidate needs them, once for all candidates.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, takewhile

import numpy as np
from numpy.typing import NDArray

from agent.evaluation.candidate_factory import Setting, candidate_of
from agent.evaluation.candidate_names import CandidateError, CandidateName, Kind
from agent.evaluation.candidates import Candidate, LeftOutError
from agent.routers import dataset
from arms.base import Progress
from feedback.dataset import Log, Source
from feedback.events import Example
from feedback.training_log import examples as training_log_examples

BLOCK = 256
"""Rows of the training log that are read at a time."""

ABOUT = {
    Kind.SERVED: "What was drawn from when the log was written.",
    Kind.UNIFORM: "Every arm that could have been drawn, alike.",
    Kind.FIXED: "Always {}; judged where it could have been drawn.",
}


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """The target policy of a candidate.

    Attributes:
        name: Name of the candidate.
        about: Description, in a sentence.
        make: Returns the distribution of each row, shape (n, n_arms); uniform where it is not evaluated.
        kept: Whether it is evaluated on a row, shape (n,).
        excluded: Number of rows that it is not evaluated on, by reason.
        notes: Remarks; a sentence each.
        unsupported: Arms that it brings and that no row could have drawn.
    """

    name: str
    about: str
    make: Callable[[], dataset.Floats]
    kept: NDArray[np.bool_]
    excluded: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    unsupported: tuple[str, ...] = ()

    @property
    def p(self) -> dataset.Floats:
        """The distribution of each row, shape (n, n_arms); computed again where that is cheap."""
        return self.make()


class Distributions(Mapping[str, dataset.Floats]):
    """The distributions of targets with any row, by name: few are in memory at a time.

    Args:
        found: The targets; the first of them is the baseline, whose distribution stays.
    """

    def __init__(self, found: Sequence[Target]) -> None:
        self._found = {one.name: one for one in found if one.kept.any()}
        self._baseline, self._p = found[0].name, found[0].p

    def __getitem__(self, name: str) -> dataset.Floats:
        found = self._found[name]
        return self._p if name == self._baseline else found.p

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


def targets(
    log: Log, candidates: Sequence[CandidateName], setting: Setting, source: Source, on_progress: Progress
) -> list[Target]:
    """Return the target policy of each candidate, in their order.

    Args:
        log: The rows that they are evaluated on.
        candidates: The names.
        setting: The service in which they would run.
        source: Source of the log.
        on_progress: Called with the progress.

    Raises:
        CandidateError: A candidate cannot be built, or cannot decide.
    """
    plain = {one.name: _plain(log, one) for one in candidates if one.kind in ABOUT}
    replayed = [
        _ReplayedCandidate(one.name, candidate_of(one, setting), log)
        for one in candidates
        if one.kind not in ABOUT
    ]
    if replayed:
        _replay(log, replayed, setting, source, on_progress)
    found = plain | {one.name: one.target() for one in replayed}
    return [found[one.name] for one in candidates]


def uniform(log: Log) -> dataset.Floats:
    """Return the uniform distribution over the eligible arms, shape (n, n_arms)."""
    eligible = np.ones((len(log), len(log.arms))) if log.p_log is None else log.p_log > 0.0
    share: dataset.Floats = eligible / eligible.sum(axis=1, keepdims=True)
    return share


def _plain(log: Log, named: CandidateName) -> Target:
    """Return the target of a candidate that reads no context. Raises CandidateError."""
    n, about = len(log), ABOUT[named.kind].format(named.argument)
    everywhere = np.ones(n, dtype=np.bool_)
    if named.kind is Kind.UNIFORM:
        return Target(named.name, about, partial(uniform, log), everywhere)
    if named.kind is Kind.SERVED:
        if log.p_log is None:
            unknown = {"only the probability of the drawn arm is on record": n}
            return Target(named.name, about, partial(uniform, log), ~everywhere, unknown)
        on_record: dataset.Floats = log.p_log
        return Target(named.name, about, lambda: on_record, everywhere)
    if named.argument not in log.arms:
        raise CandidateError(
            f"candidate {named.name!r}: that arm was never eligible; the log has: {', '.join(log.arms)}"
        )
    kept = log.eligible(named.argument)
    left_out = {"the arm could not have been drawn": int(n - kept.sum())} if not kept.all() else {}
    return Target(named.name, about, partial(_only, log, named.argument), kept, left_out)


def _only(log: Log, arm: str) -> dataset.Floats:
    """Return the distribution that always draws an arm where that was eligible, shape (n, n_arms)."""
    only = np.eye(len(log.arms))[log.column[arm]]
    return np.where(log.eligible(arm)[:, None], only, uniform(log))


class _ReplayedCandidate:
    """A candidate with its distributions so far."""

    def __init__(self, name: str, candidate: Candidate, log: Log) -> None:
        self.name, self.candidate = name, candidate
        self._p = uniform(log)
        self._kept = np.zeros(len(log), dtype=np.bool_)
        self._excluded: Counter[str] = Counter()
        self._column = log.column
        self._places: dict[tuple[str, ...], tuple[tuple[str, ...], list[int]]] = {}
        self._notes = tuple(_notes(candidate.arms, log.arms))
        self.block: Sequence[Example] = ()  # the rows that are replayed, as it sees them

    def decide(self, row: int, example: Example) -> None:
        """Record its distribution in a row. Raises CandidateError."""
        arms, columns = self._known(example.decision.arms)
        try:
            p = self._distribution(example, arms)
        except LeftOutError as reason:
            self._excluded[str(reason)] += 1
        except (ArithmeticError, LookupError, ValueError) as error:
            raise CandidateError(
                f"candidate {str(self.name)!r} cannot decide a logged decision as it is on record: {error}"
            ) from error
        else:
            self._p[row] = 0.0
            self._p[row, columns] = p
            self._kept[row] = True

    def _distribution(self, example: Example, arms: tuple[str, ...]) -> dataset.Floats:
        if example.seq <= self.candidate.after:
            raise LeftOutError(self.candidate.reason)
        if not arms:
            raise LeftOutError("no arm that it knows was eligible")
        return self.candidate.probabilities(example.decision, arms)

    def learn(self, example: Example, reward: float | None) -> None:
        """Learn from a row; None for no reward. Raises CandidateError."""
        try:
            self.candidate.learn(example, reward)
        except (ArithmeticError, LookupError, ValueError) as error:
            raise CandidateError(
                f"candidate {str(self.name)!r} cannot learn a logged decision: {error}"
            ) from error

    def target(self) -> Target:
        """Return the target policy."""
        excluded, notes = dict(self._excluded.most_common()), (*self._notes, *self.candidate.notes())
        unsupported = tuple(sorted(self.candidate.brought - self._column.keys()))
        return Target(
            self.name, self.candidate.about, lambda: self._p, self._kept, excluded, notes, unsupported
        )

    def _known(self, eligible: tuple[str, ...]) -> tuple[tuple[str, ...], list[int]]:
        """Return the eligible arms that it knows, and their columns."""
        if eligible not in self._places:
            arms = tuple(arm for arm in eligible if arm in self.candidate.arms)
            self._places[eligible] = arms, [self._column[arm] for arm in arms]
        return self._places[eligible]


def _replay(
    log: Log, replayed: Sequence[_ReplayedCandidate], setting: Setting, source: Source, on_progress: Progress
) -> None:
    """Replay the training log in order: a row of the log is decided, then learned from.

    It ends with the last row of the log.
    """
    last = int(log.seq[-1])
    for block in _blocks(source.examples(), last):
        start, stop = np.searchsorted(log.seq, (block[0].seq, block[-1].seq + 1)).tolist()
        row_of = dict(zip(log.seq[start:stop].tolist(), range(start, stop), strict=True))
        judged = [example.decision for example in block if example.seq in row_of]
        for one in replayed:
            one.block = one.candidate.seen(block)
            if judged:
                one.candidate.prepare(judged)
        for place, example in enumerate(block):
            if example.seq in row_of:
                for one in replayed:
                    one.decide(row_of[example.seq], one.block[place])
            reward = (
                None
                if training_log_examples.run_of(example.decision) is not None
                else setting.rule.reward_of(example)
            )
            for one in replayed:
                one.learn(one.block[place], reward)
        on_progress("asking candidates", block[-1].seq, last)


def _blocks(examples: Iterable[Example], last: int) -> Iterator[list[Example]]:
    """Yield blocks of examples, up to a position."""
    rest = takewhile(lambda example: example.seq <= last, examples)
    while block := list(islice(rest, BLOCK)):
        yield block


def _notes(known: frozenset[str], logged: Sequence[str]) -> Iterator[str]:
    """Yield remarks on arms that only the candidate or only the log has."""
    if new := sorted(known - set(logged)):
        yield f"Never eligible in the log, so nothing is known of it here: {', '.join(new)}."
    if gone := [arm for arm in logged if arm not in known]:
        yield f"Unknown to the candidate, which never draws it: {', '.join(gone)}."
