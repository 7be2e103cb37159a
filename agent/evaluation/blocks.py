"""What candidates decide in a block of the log: here in order, or elsewhere for those that need no order.

    decide_log --LogBlock--> replay_block     in this process: candidates that learn are one sequence
               --LogBlock--> replay_there     in any process and order: reads the block from the log itself

Both return the same arrays to the last bit.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from orjson import loads

from armwise.agent.config import parse
from armwise.agent.evaluation.candidate_names import CandidateError, parse_name
from armwise.agent.evaluation.candidates import Candidate, CandidateService, build_candidate
from armwise.agent.evaluation.evaluation_request import EvaluationRequest
from armwise.feedback.arrays import TOLERANCE, Flags, Floats, Integers
from armwise.feedback.events import Example
from armwise.feedback.log import Store
from armwise.feedback.ope import featurize, stack
from armwise.feedback.reward import RewardRule
from armwise.feedback.training_log import examples as training_log_examples
from armwise.feedback.training_log import read_examples

BLOCK = 256
"""Examples that are learned and described at once. No context is kept afterwards; a source may read more."""


@dataclass(frozen=True, slots=True)
class LogBlock:
    """A block of the log whose rows candidates decide.

    Attributes:
        first: Position of its first decision in the training log.
        last: Position of its last one.
        seq: Positions of its rows, shape (n,), rising.
        arms: The arm of each column of its distributions.
        labelled: Whether it has labels.
        label_times: Those of each candidate that decides it elsewhere, as `Candidate.label_times`.
        examples: Decisions of the block; empty if they are read elsewhere.
    """

    first: int
    last: int
    seq: Integers
    arms: tuple[str, ...]
    labelled: bool
    label_times: tuple[Mapping[str, float], ...] = ()
    examples: Iterable[Example] = ()


@dataclass(frozen=True, slots=True)
class BlockTarget:
    """What one candidate decided in a block.

    Attributes:
        p: Distributions of the candidate, shape (n, n_arms).
        reason_code: Index in `reasons` of why it is not evaluated on a row, shape (n,); 0: it is.
        reasons: The reasons.
        share: Largest share that it had as a canary so far.
    """

    p: Floats
    reason_code: NDArray[np.int8]
    reasons: tuple[str, ...]
    share: float


@dataclass(frozen=True, slots=True)
class ReplayedBlock:
    """What candidates decided in a block.

    Attributes:
        was_read: Whether the example of each row could be read, shape (n,).
        decided: What each candidate decided.
        X: Features of the rows that could be read, if they were asked for and there is one.
    """

    was_read: Flags
    decided: Sequence[BlockTarget]
    X: Any = None


MapBlocks = Callable[[Callable[[LogBlock], ReplayedBlock], Iterable[LogBlock]], Iterator[ReplayedBlock]]
"""Applies a function to blocks and yields the results in their order, as `map` does."""


def replay_block(
    part: LogBlock,
    candidates: Sequence[Candidate],
    rule: RewardRule,
    *,
    describes: bool = False,
    decided_elsewhere: Sequence[Candidate] = (),
) -> ReplayedBlock:
    """Let candidates decide the rows of a block, and learn its examples.

    Args:
        part: The block.
        candidates: Candidates in their state before the block.
        rule: The rule of rewards.
        describes: Whether to compute features of the rows.
        decided_elsewhere: Candidates that decide elsewhere, and only note its labels here.

    Raises:
        CandidateError: A candidate cannot decide, or cannot learn.
    """
    row_of = {seq: row for row, seq in enumerate(part.seq.tolist())}
    column = {arm: place for place, arm in enumerate(part.arms)}
    was_read, features = np.zeros(len(row_of), dtype=np.bool_), []
    deciders = [_Decider(candidate, len(row_of), column) for candidate in candidates]
    for block in _split(part.examples):
        rewards = [_find_learned_reward(rule, example) for example in block]
        for decider in deciders:
            decider.take(block, rewards, row_of)
        for candidate in decided_elsewhere:
            for example, reward in zip(block, rewards, strict=True):
                candidate.note(example, reward)
        found = [example for example in block if example.seq in row_of]
        was_read[[row_of[example.seq] for example in found]] = True
        if found and describes:
            features.append(featurize([example.decision.context for example in found]))
    return ReplayedBlock(
        was_read, [decider.found for decider in deciders], stack(features) if features else None
    )


def _split(examples: Iterable[Example]) -> Iterator[list[Example]]:
    rest = iter(examples)
    while block := list(islice(rest, BLOCK)):
        yield block


def _find_learned_reward(rule: RewardRule, example: Example) -> float | None:
    """Return the reward that a learner learns; None: it does not learn the example."""
    if training_log_examples.find_run(example.decision) is not None:
        return None
    return rule.compute_learned_reward(example)


class _Decider:
    """A candidate, with its distributions in a block."""

    def __init__(self, candidate: Candidate, n: int, column: Mapping[str, int]) -> None:
        self._candidate, self._column = candidate, column
        self._reasons = {"": 0}
        self._known: dict[tuple[str, ...], tuple[str, ...]] = {}  # which arms it knows, by those of a row
        self._p, self._why = np.zeros((n, len(column))), np.zeros(n, dtype=np.int8)

    @property
    def found(self) -> BlockTarget:
        return BlockTarget(self._p, self._why, tuple(self._reasons), self._candidate.share)

    def take(
        self, block: Sequence[Example], rewards: Sequence[float | None], row_of: Mapping[int, int]
    ) -> None:
        """Decide the examples that are rows, and learn each after it was decided. Raises CandidateError."""
        candidate = self._candidate
        rows = [row_of.get(example.seq, -1) for example in block]
        arms = [
            () if row < 0 else self._list_arms(row, example) for row, example in zip(rows, block, strict=True)
        ]
        found = defaultdict[tuple[str, ...], list[tuple[int, Floats]]](list)
        try:
            for row, eligible, p in zip(rows, arms, candidate.replay(block, arms, rewards), strict=True):
                if not eligible:
                    continue
                if isinstance(p, str):
                    self._why[row] = self._find_code(p)
                else:
                    found[eligible].append((row, p))
        except (ArithmeticError, LookupError, ValueError) as error:
            raise CandidateError(
                f"candidate {candidate.name!r} cannot decide or learn a logged decision: {error}"
            ) from error
        for eligible, some in found.items():
            alike, distributions = zip(*some, strict=True)
            columns = [self._column[arm] for arm in eligible]
            self._p[np.array(alike)[:, np.newaxis], columns] = np.array(distributions)

    def _list_arms(self, row: int, example: Example) -> tuple[str, ...]:
        """Return the arms among which the candidate decides a row; none if it is left out."""
        candidate, decision = self._candidate, example.decision
        if example.seq <= candidate.after:
            self._why[row] = self._find_code(candidate.reason)
            return ()
        certain = len(decision.probabilities) < len(decision.arms) and decision.propensity >= 1.0 - TOLERANCE
        possible = (decision.drawn,) if certain else decision.arms
        if (arms := self._known.get(possible)) is None:
            arms = self._known[possible] = tuple(arm for arm in possible if arm in candidate.arms)
        if not arms:
            self._why[row] = self._find_code("none of the arms that it knows was eligible")
        return arms

    def _find_code(self, reason: str) -> int:
        return self._reasons.setdefault(reason, len(self._reasons))


# -- elsewhere -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BlockTask:
    """What another process needs to replay blocks, as plain values.

    Attributes:
        config: The configuration as JSON.
        request: The request as JSON.
        arms: The live arms.
        candidates: Names of the candidates; they all have `needs_no_order`.
        describes: Whether to compute features of the rows.
    """

    config: bytes
    request: str
    arms: tuple[str, ...]
    candidates: tuple[str, ...]
    describes: bool


def replay_there(task: BlockTask, part: LogBlock) -> ReplayedBlock:
    """Replay a block in a process that has only the task; it reads the block from the log.

    Raises:
        CandidateError: A candidate cannot be built here, or cannot decide.
        LogUnavailableError: Try again later.
    """
    store, rule, candidates = _open(task)
    for candidate, label_times in zip(candidates, part.label_times, strict=True):
        candidate.label_times = dict(label_times)
    examples = read_examples(store, rule.join, part.first - 1, part.last) if len(part.seq) else ()
    return replay_block(replace(part, examples=examples), candidates, rule, describes=task.describes)


@lru_cache(maxsize=1)
def _open(task: BlockTask) -> tuple[Store, RewardRule, list[Candidate]]:
    """Open the log and build the candidates, once in a process."""
    config, request = parse(loads(task.config)), EvaluationRequest.model_validate_json(task.request)
    rule = request.apply_prices(config.reward)
    store = Store(config.database_url, rule.join, create=False)
    service = CandidateService(config, rule, store, task.arms, request.ceiling)
    return store, rule, [build_candidate(parse_name(name), service) for name in task.candidates]
