"""The loop of a replay over a log whose rows are not all alike: unreadable, without a propensity, many."""

import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from armwise.agent.evaluation.candidate_names import parse_name
from armwise.agent.evaluation.candidates import LeftOutError, StaticCandidate
from armwise.agent.evaluation.replay_log import decide_log, plain_target
from armwise.feedback.decisions import EVERYTHING, Decisions, Selection, tabulate
from armwise.feedback.events import Context, Cost, Decision, Example
from armwise.feedback.logged_draws import EmptyLogError
from armwise.feedback.ope import evaluate, featurize
from armwise.feedback.reward import RewardRule
from tests.agent.evaluation.logged import quietly
from tests.agent.evaluation.test_candidates import Examples

RULE = RewardRule.model_validate({"metrics": {"reward": {"range": (0, 1)}}})


class Half(StaticCandidate):
    """Draws either of two arms, and has no opinion on every third decision."""

    def decide(self, decision: Decision, arms: Sequence[str]) -> np.ndarray:
        del arms
        if int(decision.id) % 3 == 0:
            raise LeftOutError("no opinion")
        return np.full(2, 0.5)


def half() -> Half:
    return Half("half", "", frozenset("ab"))


def example(seq: int, context: Context, *, known: bool = True) -> Example:
    p = (0.5, 0.5) if known else ()
    decision = Decision(str(seq), context, ("a", "b"), p, "a", "imported", 0, decided_at=float(seq))
    return Example(seq, decision, Cost(), {"reward": 1.0})


class Blocks(Examples):
    """A training log of two blocks, of which some examples do not come."""

    def __init__(self, n: int, lost: Iterable[int] = (), unknown: Iterable[int] = ()) -> None:
        self.n, self.lost, self.unknown = n, frozenset(lost), frozenset(unknown)

    def make(self, seq: int) -> Example:
        return example(seq, Context(f"question {seq}"), known=seq not in self.unknown)

    def read(self, seq: int) -> Example:
        return self.make(seq)

    def blocks(
        self,
        rule: RewardRule,
        selection: Selection = EVERYTHING,
        tell: object = None,
        *,
        contexts: bool = False,
    ) -> Iterator[tuple[Decisions, Iterable[Example]]]:
        del tell, contexts
        for begin, end in ((1, self.n // 2), (self.n // 2, self.n + 1)):
            for table in tabulate(map(self.make, range(begin, end)), rule, selection):
                yield table, map(self.read, [seq for seq in range(begin, end) if seq not in self.lost])


@pytest.mark.parametrize("lost", [{7}, {1}, {40}, {3, 4, 20, 39}])
def test_a_row_whose_example_did_not_come_is_left_out_and_counted_and_the_others_keep_their_own(
    lost: set[int],
) -> None:
    log, (target,), features = decide_log(
        [half()], Blocks(40, lost), RULE, Selection(), quietly, describes=True
    )
    came = [seq for seq in range(1, 41) if seq not in lost]
    assert (log.seq.tolist(), dict(log.excluded)) == (came, {"cannot be read": len(lost)})
    theirs = featurize([Context(f"question {seq}") for seq in came])
    assert (theirs != features).nnz == 0
    assert target.kept.tolist() == [seq % 3 != 0 for seq in came]
    assert int(target.kept.sum()) + sum(target.left_out.values()) == len(log)


def test_a_row_is_not_read_if_nothing_needs_its_example() -> None:
    log, *_ = decide_log([], Blocks(40, {7}), RULE, Selection(), quietly)
    assert (len(log), dict(log.excluded)) == (40, {})


def test_a_log_of_which_no_row_can_be_read_is_refused_with_the_reason() -> None:
    with pytest.raises(EmptyLogError, match="cannot be read"):
        decide_log([half()], Blocks(4, range(5)), RULE, Selection(), quietly)


@pytest.mark.parametrize("lost", [(), (2, 4, 9)])
def test_a_candidate_is_not_judged_by_or_excused_from_rows_that_are_none(lost: tuple[int, ...]) -> None:
    unknown = range(1, 41, 4)
    source = Blocks(40, lost, unknown)
    log, (target,), features = decide_log([half()], source, RULE, Selection(), quietly, describes=True)
    rows = [seq for seq in range(1, 41) if seq not in {*unknown, *lost}]
    assert log.seq.tolist() == rows
    assert (featurize([Context(f"question {seq}") for seq in rows]) != features).nnz == 0
    assert target.left_out == {"no opinion": sum(seq % 3 == 0 for seq in rows)}
    assert target.kept.tolist() == [seq % 3 != 0 for seq in rows]


@pytest.mark.parametrize("every", [1, 2, 7])
def test_eligibility_counts_where_only_the_probability_of_the_drawn_arm_is_logged(every: int) -> None:
    """Values by weights are the same as where all distributions are logged: eligible arms are on record."""
    rng, whole, alone = np.random.default_rng(4), [], []
    for seq in range(1, 401):
        arms = ("a", "b", "c") if seq % 3 else ("a", "b")
        p = tuple(rng.dirichlet(np.ones(len(arms))).tolist())
        at = int(rng.choice(len(arms), p=p))
        decision = Decision(str(seq), Context(f"q {seq}"), arms, p, arms[at], "imported", 0)
        reward = {"reward": {"a": 0.1, "b": 0.4, "c": 0.8}[arms[at]]}
        whole.append(Example(seq, decision, Cost(), reward))
        first = (arms[at], *(arm for arm in arms if arm != arms[at]))
        if seq % every == 0:
            decision = replace(decision, arms=first, probabilities=(p[at],))
        alone.append(Example(seq, decision, Cost(), reward))
    values = []
    for examples in (whole, alone):
        log, *_ = decide_log([], Examples(examples), RULE, Selection(), quietly)
        targets = [plain_target(log, parse_name(name)) for name in ("uniform", "fixed:a", "fixed:c")]
        found = evaluate(
            *(log, {one.name: one.p for one in targets}, np.random.default_rng(0)),
            kept={one.name: one.kept for one in targets},
            estimators=("ips", "snips"),
        )
        values.append([each.value.value for one in found.values() for each in one.estimates if each.value])
    assert values[1] == pytest.approx(values[0])
    assert values[0][-1] == pytest.approx(0.8), "of the rows that could have drawn c"
    served = plain_target(log, parse_name("served"))
    assert served.kept.tolist() == [seq % every != 0 for seq in range(1, 401)]
    assert served.left_out == {"only the probability of the drawn arm is on record": 400 // every}


class Watched(Context):
    """A context that a reference can be weak to."""


@pytest.mark.parametrize("describes", [False, True])
def test_contexts_are_in_memory_a_block_at_a_time(
    monkeypatch: pytest.MonkeyPatch, *, describes: bool
) -> None:
    monkeypatch.setattr("armwise.agent.evaluation.replay_log.BLOCK", 16)
    made: list[weakref.ref[Watched]] = []
    most = 0

    class Watching(Blocks):
        def read(self, seq: int) -> Example:
            nonlocal most
            context = Watched(f"question {seq}")
            made.append(weakref.ref(context))
            most = max(most, sum(one() is not None for one in made))
            return example(seq, context)

    decide_log([half()], Watching(400), RULE, Selection(), quietly, describes=describes)
    assert len(made) == 400
    assert most <= 3 * 16
