"""The join gives what a state machine gives that reads the facts one by one, on random histories."""

import os
import random  # noqa: TID251 - one of Python draws a hundred times as fast
from collections.abc import Sequence
from dataclasses import replace

import pytest

from armwise.feedback.events import Feedback, FeedbackKind, Mode, Status
from armwise.feedback.reward import RewardRule
from armwise.feedback.training_log.join import Joined
from tests.feedback.fact_log import FactLog
from tests.feedback.fold_oracle import DecisionFact, Executed, FeedbackFact, Fold, JoinedFact, TickFact

HISTORIES = 400

STATUSES = [*[Status.OK] * 6, Status.ARM_FAILED, Status.FELL_BACK, Status.CANCELLED, Status.LLM_FAILED]

KINDS = [*[FeedbackKind.VALUE] * 6, FeedbackKind.RETRACTION, FeedbackKind.ACTIVATION]

EPISODES = ["e1", "e2", "e3", None, None]


def draw_rule(rng: random.Random) -> RewardRule:
    """Draw a rule: when feedback is complete, what silence and failure count, and the share of a rater."""
    at_deadline = {"default": rng.choice([None, 0.0]), "failed": rng.choice([None, 0.0])}
    early = {"complete": rng.choice(["any", "all", "deadline"])}
    document = {
        "metrics": {
            name: {"aggregation": rng.choice(["first", "last", "mean", "sum"])}
            for name in rng.choice([["m"], ["m", "n"]])
        },
        "wait_time": rng.choice(["PT20S", "PT40S", "PT2M"]),
        "rater_share": rng.choice([1.0, 0.25, 0.1]),
        **rng.choice([at_deadline, early, early]),
    }
    return RewardRule.model_validate(document)


class History:
    """Facts in the order of a log: late, early, repeated and retracted feedback, conversations, clocks.

    Args:
        rng: Draws them.
        n: Number of facts.
    """

    def __init__(self, rng: random.Random, n: int) -> None:
        self._rng = rng
        self.facts: list[JoinedFact] = []
        self._now = self._log_at = 1000.0
        self._decided: list[DecisionFact] = []
        self._waiting: list[str] = []
        self._values: list[Feedback] = []
        self._n_feedback = 0
        # some histories have many raters and few decisions that nobody rates
        self._gaps = rng.choice([[0.0, 0.1, 1.0], [0.1, 1.0, 3.0], [0.0, 0.5, 0.5, 9.0]])
        self._shares = rng.choice([(0.25, 0.25, 0.45), (0.3, 0.3, 0.35), (0.15, 0.15, 0.65)])
        while len(self.facts) < n:
            self._now += rng.choice(self._gaps)
            if rng.random() < 0.02:
                self._now += rng.choice([-15.0, 60.0, 300.0])  # a clock is set, or nobody asks
            kind = rng.choices("dxft", [*self._shares, 0.05])[0]
            {"d": self._decide, "x": self._execute, "f": self._rate, "t": self._tick}[kind]()

    def _add(self, fact: JoinedFact) -> None:
        self.facts.append(replace(fact, seq=len(self.facts) + 1))

    def _decide(self) -> None:
        rng, name = self._rng, f"d{len(self.facts) + 1}"
        at = self._now - rng.choice([0.0, 0.0, 0.0, 0.5, 4.0, 50.0])
        self._log_at = max(self._log_at, at)
        mode = rng.choice([*[Mode.EXPLORE] * 5, Mode.FORCED, Mode.GREEDY])
        kept, draw_id = rng.random() < 0.3, None
        draws = [each for each in self._decided if each.draw_id is not None]
        if draws and rng.random() < 0.3:
            # mostly a draw, at times a turn
            mode, draw_id = Mode.CONTINUED, rng.choice(draws[-6:]).id
        elif kept:
            draw_id = name
        past = mode is Mode.EXPLORE and draw_id is None and rng.random() < 0.05
        fact = DecisionFact(
            *(0, name, at, self._log_at, mode, rng.choice(EPISODES)),
            deferred=rng.random() < 0.1,
            past=past,
            draw_id=draw_id,
        )
        self._add(fact)
        self._decided.append(fact)
        self._waiting.append(name)

    def _execute(self) -> None:
        rng = self._rng
        if rng.random() < 0.02:
            # of a decision that comes later, or never does
            name = f"d{len(self.facts) + rng.choice([2, 3, 9])}"
            if all(name != fact.decision_id for fact in self.facts if isinstance(fact, Executed)):
                self._reach(Executed(0, name, self._now, Status.OK))
            return
        for name in reversed(self._waiting[-4:]) if rng.random() < 0.8 else self._waiting[:1]:
            self._waiting.remove(name)
            if all(name != fact.decision_id for fact in self.facts if isinstance(fact, Executed)):
                self._reach(Executed(0, name, self._now, rng.choice(STATUSES)))
            return

    def _rate(self) -> None:
        rng = self._rng
        n = rng.choice([1, 1, 1, 1, 2, 3])  # sent together
        kind = rng.choice(KINDS)
        names = [each.id for each in self._decided[-8:]] + [f"d{len(self.facts) + rng.randrange(1, 9)}"]
        about = (None, rng.choice(EPISODES[:3])) if rng.random() < 0.3 else (rng.choice(names), None)
        if kind is FeedbackKind.RETRACTION:
            self._retract()
            return
        rater = rng.choice([None, "", "a", "a", "b", "p~1", "p~2"])
        for place in range(n):
            self._n_feedback += 1
            is_value = kind is FeedbackKind.VALUE
            item = Feedback(
                f"f{self._n_feedback}",
                about[0],
                rng.choice("mmmnnu") if is_value else "",
                float(rng.choice([0.0, 0.5, 1.0])) if is_value else None,
                self._now - rng.choice([0.0, 0.0, 0.0, 5.0]),
                episode_id=about[1],
                kind=kind,
                rater=rater if is_value else None,
            )
            self._values += [item] if is_value else []
            self._reach(FeedbackFact(0, item, place < n - 1))

    def _retract(self) -> None:
        gone = {
            fact.feedback.id for fact in self.facts if isinstance(fact, FeedbackFact) and is_retraction(fact)
        }
        known = [item for item in self._values if item.id not in gone]
        if known:
            item = self._rng.choice(known[-8:])
            taken = replace(
                item, metric="", value=None, received_at=self._now, kind=FeedbackKind.RETRACTION, rater=None
            )
            self._reach(FeedbackFact(0, taken))

    def _tick(self) -> None:
        self._reach(TickFact(0, self._now))

    def _reach(self, fact: JoinedFact) -> None:
        self._log_at = max(self._log_at, fact.at)
        self._add(fact)


def is_retraction(fact: FeedbackFact) -> bool:
    return fact.feedback.kind is FeedbackKind.RETRACTION


def fold(rule: RewardRule, facts: Sequence[JoinedFact]) -> list[Joined]:
    """Fold facts one by one; each decision knows the feedback before it, as it was once read."""
    state, found, before = Fold(rule), list[Joined](), list[Feedback]()
    for fact in facts:
        if isinstance(fact, FeedbackFact):
            before.append(fact.feedback)
        elif isinstance(fact, DecisionFact):
            about = {item.decision_id or item.episode_id for item in before}
            mine = {fact.id, fact.episode_id} & about and [
                item
                for item in before
                if fact.id == item.decision_id
                or (item.decision_id is None and item.episode_id == fact.episode_id)
            ]
            fact = replace(fact, earlier=mine or [])
        found += state.apply(fact)
    return found


def compare(seed: int, log: FactLog) -> int:
    """Join a history in random portions, and compare; return the number of ready decisions."""
    rng = random.Random(seed)
    rule = draw_rule(rng)
    facts = History(rng, rng.choice([40, 120, 300])).facts
    log.fill(facts)
    portions, left = list[int](), len(facts)
    while left:
        portions.append(min(left, rng.choice([1, 5, 30, 100, 300])))
        left -= portions[-1]
    expected, found = fold(rule, facts), log.join(rule, portions)
    assert found == expected, f"history {seed}"
    return len(found)


def test_random_histories_are_joined_as_one_by_one() -> None:
    log = FactLog()
    ready = [compare(seed, log) for seed in range(HISTORIES)]
    assert sum(ready) > 2 * HISTORIES  # most of them have something to compare


def test_feedback_sent_together_is_complete_at_its_end_though_that_is_older_than_the_decision() -> None:
    assert compare(6137, FactLog()) == 2


def test_histories_are_joined_alike_when_a_statement_takes_only_two_ids(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("armwise.feedback.training_log.join.LOOKED_UP", 2)
    log = FactLog()
    assert sum(compare(seed, log) for seed in range(60)) > 60


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_many_random_histories_are_joined_as_one_by_one() -> None:
    log, n = FactLog(), int(os.environ.get("HISTORIES", "100000"))
    assert sum(compare(seed, log) for seed in range(HISTORIES, HISTORIES + n)) > 2 * n
