"""What callers were told, and what must hold of a log by that alone: nothing here calls the code under test.

    lost        what was acknowledged is not in the log
    changed     it is there, and is not what its caller was told
    gap         positions of the facts are not 1, 2, ... up to the head, or a row stands twice
    twice       a decision is learned more than once
    learned     it was learned before its time, with other values than its feedback has, or not at all
    version     versions, epochs or what a version has learned go backwards, or another one than was pinned
                decides
    propensity  a distribution does not add up, is below its floor, is not what was drawn from, or is not the
                one that the version gives by what it has learned
    price       the price of a budget is not the one that the costs before it give
    quota       a replica admitted a key beyond its limit
    alarm       a change was detected and is not in the log, or stands twice
    waiting     more is under way at once, or waits, than may
    chain       the chain of the log does not follow from its facts, or a version has another one
    law         a statement broke what holds of every log: see `tests.simulation.laws`
    erased      a text is there after its erasure was acknowledged
    foreign     a caller was shown what belongs to another

Tables are lists of rows as the database has them, JSON columns parsed. The crash matrix of
`tests.crashes` reads its logs with this, too.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, fsum, isclose
from typing import Any

Row = Mapping[str, Any]
Tables = Mapping[str, Sequence[Row]]

FACTS = ("decisions", "executions", "feedback", "observations", "ticks")
TEXTS = {"texts": "document", "decisions": "features", "feedback": "labels"}
"""Columns that hold what people wrote or read, or once held it."""

MINUTE_S = 60.0


DOCUMENTS = {
    "decisions": {"arms", "probabilities", "features", "steps"},
    "executions": {"tokens_by_model"},
    "feedback": {"labels"},
    "texts": {"document"},
    "examples": {"metrics", "turns"},
    "jobs": {"request", "result"},
    "operations": {"document"},
    "versions": {"policy", "start"},
}
"""Columns that hold JSON, by table."""

TABLES = ("log", *FACTS, "texts", "examples", "versions")
"""What a history is compared with."""


def parse_rows(table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[Row]:
    """Return rows of a table by column, JSON parsed where the driver has not done so."""
    documents = DOCUMENTS.get(table, ())
    return [
        {
            name: json.loads(value) if name in documents and isinstance(value, str) else value
            for name, value in zip(columns, row, strict=True)
        }
        for row in rows
    ]


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that must not be: its kind, what was found, and the id that it is about."""

    kind: str
    what: str
    about: str = ""

    def __str__(self) -> str:
        """Return it as a line."""
        return f"{self.kind}: {self.what}"


@dataclass(frozen=True, slots=True)
class Answered:
    """A decision as a caller received it.

    Attributes:
        id: The decision, by the id in the log.
        fields: What the answer says of the decision, under the names of the API.
        served: The arm that answered; None if unknown.
        text: The text of the answer; None if it is unknown, or broke off.
        done: Whether the answer was whole, so that its execution was acknowledged.
        status: How the turn ended; None if unknown.
        begun: When it was first asked for, seconds of the world.
        at: When it was received, likewise.
    """

    id: str
    fields: Mapping[str, Any]
    served: str | None = None
    text: str | None = None
    done: bool = True
    status: str | None = None
    begun: float = 0.0
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Kept:
    """Feedback that was acknowledged, with its content and its position by the receipt."""

    id: str
    kind: str
    decision_id: str | None
    episode_id: str | None
    metric: str
    value: float | None
    seq: int


@dataclass(frozen=True, slots=True)
class Erased:
    """An erasure.

    Attributes:
        decision_id: The decision.
        words: Words that only its texts have.
        done: Whether it was acknowledged; else it may have happened.
    """

    decision_id: str
    words: tuple[str, ...]
    done: bool = True


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request of a limited key that was admitted: wholly between two times, seconds since the epoch."""

    key: str
    replica: str
    limit: int
    begun_at: float
    ended_at: float


@dataclass(frozen=True, slots=True)
class Change:
    """An operator's change of the policy: the version that it pins, if it was acknowledged and pins one.

    Attributes:
        version: The version; None if none is pinned, or the outcome is not known.
        begun: When it was sent, seconds of the world.
        ended: When it was acknowledged, or given up.
        releases: Whether it ends what an earlier one has pinned.
    """

    version: int | None
    begun: float
    ended: float
    releases: bool = True


@dataclass(slots=True)
class History:
    """Everything that callers were told, in order.

    Attributes:
        evaluations: Those that were accepted: their number, and the candidates that were asked for.
        odd: Answers that no caller should ever get.
    """

    answered: list[Answered] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)
    erased: list[Erased] = field(default_factory=list)
    admitted: list[Admitted] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    evaluations: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)
    odd: list[Fault] = field(default_factory=list)


FIELDS = {
    "policy_version": "version",
    "mode": "mode",
    "arm_drawn": "drawn",
    "propensity": "propensity",
    "reward_deadline": "deadline",
    "episode_id": "episode_id",
}
"""Names of the API, and the columns that have the same values."""


def find_lost(history: History, tables: Tables) -> Iterator[Fault]:
    """Yield what was acknowledged and is not in the log as it was told."""
    decisions = {row["id"]: row for row in tables["decisions"]}
    texts = {row["seq"]: row["document"] for row in tables["texts"]}
    executions = _group(
        ({**row, "answer": texts.get(row["seq"], {}).get("answer")} for row in tables["executions"]),
        "decision_id",
    )
    gone = {erased.decision_id for erased in history.erased}
    for answer in history.answered:
        row = decisions.get(answer.id)
        if row is None:
            yield Fault("lost", f"decision {answer.id} is not there", answer.id)
            continue
        for name, column in FIELDS.items():
            if name in answer.fields and answer.fields[name] != row[column]:
                what = (
                    f"decision {answer.id} was told {name} {answer.fields[name]!r}, and has {row[column]!r}"
                )
                yield Fault("changed", what, answer.id)
        pmf = dict(zip(row["arms"], row["probabilities"], strict=True))
        if "pmf" in answer.fields and answer.fields["pmf"] != pmf:
            what = f"decision {answer.id} was told {answer.fields['pmf']}, and has {pmf}"
            yield Fault("changed", what, answer.id)
        if answer.done:
            yield from _find_lost_execution(answer, executions.get(answer.id, []), erased=answer.id in gone)
    yield from _find_lost_feedback(history, tables)


def _find_lost_execution(answer: Answered, ran: Sequence[Row], *, erased: bool) -> Iterator[Fault]:
    if len(ran) != 1:
        yield Fault("lost", f"the execution of {answer.id} is there {len(ran)} times", answer.id)
        return
    told = {"status": answer.status, "served": answer.served, "answer": None if erased else answer.text}
    for name, value in told.items():
        if value is not None and (ran[0][name] or "") != value:
            what = f"the {name} of {answer.id} was told as {value!r}, and is {ran[0][name]!r}"
            yield Fault("changed", what, answer.id)


def _find_lost_feedback(history: History, tables: Tables) -> Iterator[Fault]:
    rows = {row["seq"]: row for row in tables["feedback"]}
    places = {(row["id"], row["kind"]): row["seq"] for row in tables["feedback"]}
    for fact in history.kept:
        row = rows.get(fact.seq)
        if row is None:
            at = places.get((fact.id, fact.kind))
            kind, where = ("lost", "not there") if at is None else ("changed", f"at {at}")
            yield Fault(kind, f"feedback {fact.id} was received at {fact.seq}, and is {where}", fact.id)
            continue
        told = (fact.kind, fact.decision_id, fact.episode_id, fact.metric, fact.value)
        there = tuple(row[name] for name in ("kind", "decision_id", "episode_id", "metric", "value"))
        if told != there:
            what = f"feedback {fact.id} was received as {told}, and is {there} at {fact.seq}"
            yield Fault("changed", what, fact.id)


def find_gaps(tables: Tables) -> Iterator[Fault]:
    """Yield positions that are missing or double, and rows that stand twice."""
    given = Counter(row["seq"] for name in FACTS for row in tables[name])
    (head,) = (row["seq"] for row in tables["log"])
    if given != Counter(range(1, head + 1)):
        missing = sorted(set(range(1, head + 1)) - given.keys())
        double = sorted(seq for seq, times in given.items() if times > 1)
        beyond = sorted(given.keys() - set(range(1, head + 1)))
        yield Fault(
            "gap", f"of {head} positions {missing} are missing, {double} double, {beyond} out of range"
        )
    for name, key in (("decisions", "id"), ("executions", "decision_id")):
        for value, times in Counter(row[key] for row in tables[name]).items():
            if times > 1:
                yield Fault("gap", f"{name} has {value} {times} times")
    decided = {row["id"] for row in tables["decisions"]}
    for name in ("executions", "observations"):
        for row in tables[name]:
            if row["decision_id"] not in decided:
                yield Fault("gap", f"{name} at {row['seq']} is of {row['decision_id']}, which is not there")
    for value, times in Counter((row["id"], row["kind"]) for row in tables["feedback"]).items():
        if times > 1:
            yield Fault("gap", f"feedback has {value} {times} times")


# -- what was learned --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rule:
    """How feedback becomes what is learned.

    Attributes:
        aggregation: `last` or `mean` of the values of each metric.
        at_once: Whether a decision is learned once its first value can be corrected no more, and never
            without one; else it is after its wait time.
        grace_s: Seconds from the deadline to the closing.
        correction_s: Seconds in which the first value can be corrected, where it is learned at once.
    """

    aggregation: Mapping[str, str]
    at_once: bool
    grace_s: float
    correction_s: float = 0.0


def find_wrongly_learned(tables: Tables, rule: Rule, *, settled: bool) -> Iterator[Fault]:
    """Yield what was learned twice, too early, or with other values than its feedback gives.

    Args:
        tables: The log.
        rule: How feedback becomes what is learned.
        settled: Whether all wait times have passed and the learner has read all: what is ready must be there.
    """
    examples = sorted(tables["examples"], key=lambda row: row["seq"])
    for name, times in Counter(row["decision_id"] for row in examples).items():
        if times > 1:
            yield Fault("twice", f"decision {name} is learned {times} times")
    if [row["seq"] for row in examples] != list(range(1, len(examples) + 1)):
        yield Fault("learned", f"{len(examples)} examples are not numbered from 1")
    log = _Log(tables)
    for example in examples:
        yield from log.find_wrong(example, rule)
    if settled:
        learned = {row["decision_id"] for row in examples}
        for name in log.ready(rule) - learned:
            yield Fault("learned", f"decision {name} is ready, and was never learned")


class _Log:
    """The facts by what they are about, and the log's time at each position."""

    def __init__(self, tables: Tables) -> None:
        self.decisions = {row["id"]: row for row in tables["decisions"]}
        self.executions = {row["decision_id"]: row for row in tables["executions"]}
        self.feedback = _group(tables["feedback"], "decision_id")
        alone = (row for row in tables["feedback"] if row["decision_id"] is None)
        self.of_episodes = _group(alone, "episode_id")
        times = {row["seq"]: row["decided_at"] for row in tables["decisions"]}
        times |= {row["seq"]: row["finished_at"] for row in tables["executions"]}
        times |= {row["seq"]: row["received_at"] for row in tables["feedback"]}
        times |= {row["seq"]: row["observed_at"] for row in tables["observations"]}
        times |= {row["seq"]: row["at"] for row in tables["ticks"]}
        self.time_at: dict[int, float] = {}
        latest = 0.0
        for seq in sorted(times):
            latest = self.time_at[seq] = max(latest, times[seq])
        self.latest = latest

    def ready(self, rule: Rule) -> set[str]:
        """Return the decisions that must be in the training log by now."""
        return {
            name
            for name, row in self.decisions.items()
            if row["mode"] == "explore"
            and name in self.executions
            and self.executions[name]["status"] == "ok"
            and self._in_time(self.executions[name], row, rule)
            and self._is_active(row, rule)
            and (self.values(row, rule) if rule.at_once else self.latest > _closing(row, rule))
        }

    def _in_time(self, row: Row, decision: Row, rule: Rule) -> bool:
        """Whether a fact came before the log's time had closed its decision."""
        return self.time_at[row["seq"]] <= _closing(decision, rule)

    def find_wrong(self, example: Row, rule: Rule) -> Iterator[Fault]:
        name, by = example["decision_id"], example["joined_by"]
        decision, execution = self.decisions.get(name), self.executions.get(name)
        if decision is None or execution is None:
            yield Fault("learned", f"{name} has no decision or no execution, and was learned")
            return
        if execution["status"] != "ok" or decision["mode"] != "explore":
            what = f"{name} of mode {decision['mode']} and status {execution['status']} was learned"
            yield Fault("learned", what)
        if max(decision["seq"], execution["seq"]) > by:
            yield Fault("learned", f"{name} was learned by {by}, before it was there")
        if not self._is_active(decision, rule, by):
            yield Fault("learned", f"{name} was learned, and its answer was never shown")
        values = self.values(decision, rule, by - 1 if rule.at_once else by)
        if rule.at_once and by != (due_by := self._find_due(decision, execution, rule)):
            yield Fault("learned", f"{name} was learned by {by}, and its corrections were over by {due_by}")
        early = self.time_at.get(by, 0.0) <= decision["deadline"]
        if early and not (rule.at_once and values):
            what = f"{name} was learned at {self.time_at.get(by)}, before its deadline {decision['deadline']}"
            yield Fault("learned", what)
        due = {metric: _aggregate(numbers, rule.aggregation[metric]) for metric, numbers in values.items()}
        found = example["metrics"]
        if due.keys() != found.keys() or not all(isclose(due[key], found[key]) for key in due):
            yield Fault(
                "learned", f"{name} was learned with {found}, and its feedback up to {by} gives {due}"
            )

    def _find_due(self, decision: Row, execution: Row, rule: Rule) -> int | None:
        """Return the position at which a decision with a value can be corrected no more, or is closed.

        The first value can be corrected for a while. If it was taken back by then, the next one can be.
        """
        rows = (*self.feedback.get(decision["id"], ()), *self._on_episode(decision))
        until = float("-inf")
        for row in sorted(rows, key=lambda row: int(row["seq"])):
            at = self.time_at[row["seq"]]
            if row["more"] or at <= until or not self._is_rated(decision, rule, row["seq"]):
                continue
            until = at + rule.correction_s
            due_by = max(self._find_later(until), execution["seq"])
            if due_by >= self._find_later(_closing(decision, rule)):
                break
            if self._is_rated(decision, rule, due_by - 1):
                return due_by
        return self._find_later(_closing(decision, rule))

    def _is_rated(self, decision: Row, rule: Rule, upto: int) -> bool:
        return bool(self.values(decision, rule, upto)) and self._is_active(decision, rule, upto)

    def _find_later(self, at: float) -> int:
        """Return the first position with a later time; beyond the log if there is none."""
        return next((seq for seq, later in self.time_at.items() if later > at), len(self.time_at) + 1)

    def _on_episode(self, decision: Row) -> Iterator[Row]:
        """Yield feedback on the episode of a decision; earlier values belong to earlier decisions."""
        if decision["episode_id"] is not None:
            for row in self.of_episodes.get(decision["episode_id"], ()):
                if row["kind"] != "value" or row["received_at"] >= decision["decided_at"]:
                    yield row

    def _is_active(self, decision: Row, rule: Rule, upto: int | None = None) -> bool:
        """Whether a decision counts: one that is deferred does once its answer was shown."""
        return not decision["deferred"] or any(
            row["kind"] == "activation"
            and (upto is None or row["seq"] <= upto)
            and row["received_at"] <= decision["deadline"]
            and self._in_time(row, decision, rule)
            for row in self.feedback.get(decision["id"], ())
        )

    def values(self, decision: Row, rule: Rule, upto: int | None = None) -> dict[str, list[float]]:
        """Return the values of each metric that count, in order of the log."""
        rows = [
            row
            for row in (*self.feedback.get(decision["id"], ()), *self._on_episode(decision))
            if (upto is None or row["seq"] <= upto)
            and row["received_at"] <= decision["deadline"]
            and self._in_time(row, decision, rule)
        ]
        retracted = {row["id"] for row in rows if row["kind"] == "retraction"}
        values: dict[str, list[float]] = {}
        for row in sorted(rows, key=lambda row: int(row["seq"])):
            if row["kind"] == "value" and row["id"] not in retracted and row["value"] is not None:
                values.setdefault(row["metric"], []).append(row["value"])
        return values


def _closing(decision: Row, rule: Rule) -> float:
    """Return the log's time after which a decision is closed; the log may have been ahead of its deadline."""
    return float(max(decision["deadline"], decision["logged_at"])) + rule.grace_s


def _aggregate(values: Sequence[float], how: str) -> float:
    return values[-1] if how == "last" else fsum(values) / len(values)


# -- versions and draws --------------------------------------------------------------------------------------


def find_backward_versions(tables: Tables) -> Iterator[Fault]:
    """Yield versions that have learned less than an earlier one of their recipe, or are of an older epoch."""
    learned: dict[str, int] = defaultdict(int)
    epochs: dict[str, int] = defaultdict(int)
    for row in sorted(tables["versions"], key=lambda row: int(row["version"])):
        if row["examples_seq"] < learned[row["recipe"]]:
            what = (
                f"version {row['version']} has learned {row['examples_seq']} after {learned[row['recipe']]}"
            )
            yield Fault("version", what)
        if row["epoch"] < epochs[row["recipe"]]:
            what = f"version {row['version']} is of epoch {row['epoch']} after {epochs[row['recipe']]}"
            yield Fault("version", what)
        learned[row["recipe"]] = max(learned[row["recipe"]], row["examples_seq"])
        epochs[row["recipe"]] = max(epochs[row["recipe"]], row["epoch"])


FOLLOWED_S = 5.0
"""Seconds within which every replica follows an operator that the log can be read by."""


def _is_calm(calm_from: Sequence[float], at: float) -> bool:
    """Return whether replicas could read the log for the last `FOLLOWED_S`.

    Args:
        calm_from: Moments from which on they could: the end of the last fault, and when the machine woke.
        at: The time.
    """
    return any(moment <= at for moment in calm_from) and all(
        moment > at or moment + FOLLOWED_S < at for moment in calm_from
    )


def find_disobeyed(history: History, calm_from: Sequence[float]) -> Iterator[Fault]:
    """Yield answers by another version than the one that was pinned before they were asked for.

    Args:
        history: What callers were told.
        calm_from: Moments from which on every replica can read the log, in order.
    """
    for change in history.changes:
        later = [other.begun for other in history.changes if other.releases and other.ended > change.ended]
        until = min(later, default=float("inf"))
        for answer in history.answered:
            follows = change.ended + FOLLOWED_S < answer.begun and answer.at < until
            follows &= _is_calm(calm_from, answer.begun)
            told = answer.fields.get("policy_version")
            if change.version is not None and follows and told != change.version:
                yield Fault(
                    "version", f"{answer.id} was decided by {told}, where {change.version} was pinned"
                )


def find_odd_draws(tables: Tables) -> Iterator[Fault]:
    """Yield decisions whose distribution does not add up, is below the floor, or is not drawn from."""
    versions = {row["version"] for row in tables["versions"]}
    for row in tables["decisions"]:
        p = dict(zip(row["arms"], row["probabilities"], strict=True))
        name = row["id"]
        if not isclose(fsum(p.values()), 1.0, abs_tol=1e-6):
            yield Fault("propensity", f"{name} was drawn from {p}, which sums to {fsum(p.values())}")
        if row["drawn"] not in p:
            yield Fault("propensity", f"{name} drew {row['drawn']!r} of {p}")
        elif not isclose(p[row["drawn"]], row["propensity"], rel_tol=1e-9):
            yield Fault("propensity", f"{name} has {row['propensity']}, and drew {row['drawn']!r} of {p}")
        if row["mode"] == "explore" and _read_floor(row) and min(p.values()) < _read_floor(row) - 1e-9:
            yield Fault("propensity", f"{name} has a floor of {_read_floor(row)}, and {p}")
        if row["version"] and row["version"] not in versions:
            yield Fault("propensity", f"{name} was decided by version {row['version']}, which is not there")


@dataclass(frozen=True, slots=True)
class Means:
    """A policy that learns one mean of each arm: LinUCB without columns, each arm apart.

    Attributes:
        policy: The policy, as versions name it.
        alpha: Standard deviations in the bound.
        ridge: Number of rewards that outweigh the prior.
        prior: Expected reward of an arm without rewards.
        ranges: Range of each metric, which all count alike.
        cost_weight: Reward that a step costs.
        shares: What all arms have alike of the draws together, and what they have after an alarm.
    """

    policy: Mapping[str, Any]
    alpha: float
    ridge: float
    prior: float
    ranges: Mapping[str, tuple[float, float]]
    cost_weight: float
    shares: tuple[float, ...]

    def reward(self, values: Mapping[str, float], steps: float) -> float:
        """Return the reward of a decision; without a value it is that of the cost alone."""
        places = [
            (value - self.ranges[name][0]) / (self.ranges[name][1] - self.ranges[name][0])
            for name, value in values.items()
        ]
        quality = fsum(places) / len(places) if places else 0.0
        return max(-1.0, min(1.0, quality - self.cost_weight * steps))

    def bound(self, rewards: Sequence[float]) -> float:
        """Return the upper bound on the mean reward of an arm.

        Source: Li et al. 2010, A contextual-bandit approach to personalized news article recommendation,
        algorithm 1, with a context of one number, which is 1.
        """
        a = self.ridge + len(rewards)
        return self.prior + fsum(reward - self.prior for reward in rewards) / a + self.alpha / a**0.5


def find_other_draws(tables: Tables, means: Means) -> Iterator[Fault]:
    """Yield decisions with another distribution than their version gives by the examples that it has learned.

    Before the first version nothing is learned. Decisions of another policy are left out, and those of
    versions that began to learn later, and those that are shared with a canary.
    """
    decisions = {row["id"]: row for row in tables["decisions"]}
    steps = {row["decision_id"]: row["steps"] for row in tables["executions"]}
    learned = {
        row["version"]: row["examples_seq"]
        for row in tables["versions"]
        if row["policy"] == means.policy and row["start"] is None
    }
    taught = [
        (row["seq"], decisions[name]["drawn"], means.reward(row["metrics"], steps[name]))
        for row in tables["examples"]
        if (name := row["decision_id"]) in decisions and name in steps  # else it is lost
    ]
    for row in decisions.values():
        known = 0 if row["policy"] == means.policy["kind"] and not row["version"] else None
        upto = learned.get(row["version"], known)
        if row["mode"] != "explore" or row["steps"].get("canary") or upto is None:
            continue
        floors = [share / len(row["arms"]) for share in means.shares]
        if not any(isclose(_read_floor(row), floor) for floor in floors):
            yield Fault(
                "propensity", f"{row['id']} has a floor of {_read_floor(row)}, which is none of {floors}"
            )
        rewards: dict[str, list[float]] = {arm: [] for arm in row["arms"]}
        for seq, arm, reward in taught:
            if seq <= upto and arm in rewards:
                rewards[arm].append(reward)
        budget = row["steps"].get("budget", {"price": 0.0, "costs": dict.fromkeys(row["arms"], 0.0)})
        bounds = [means.bound(rewards[arm]) - budget["price"] * budget["costs"][arm] for arm in row["arms"]]
        best = [bound >= max(bounds) - 1e-9 for bound in bounds]
        left = 1.0 - _read_floor(row) * len(best)
        due = [_read_floor(row) + left * is_best / sum(best) for is_best in best]
        if not all(isclose(p, q, abs_tol=1e-9) for p, q in zip(due, row["probabilities"], strict=True)):
            what = (
                f"{row['id']} was drawn from {row['probabilities']}, and version {row['version']} gives {due}"
            )
            yield Fault("propensity", what)


# -- budgets -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ceiling:
    """A ceiling on the mean number of steps of a request, and the requests over which it is kept."""

    steps: float
    window: int


@dataclass(frozen=True, slots=True)
class Paced:
    """A price of a step, what was spent above the ceiling, and number and mean of the costs of each arm."""

    price: float = 0.0
    debt: float = 0.0
    arms: Mapping[str, tuple[int, float]] = field(default_factory=dict)

    @classmethod
    def read(cls, row: Row) -> "Paced":
        """Return that of a row."""
        return cls(row["price"], row["debt"], {arm: (n, mean) for arm, (n, mean) in row["arms"].items()})

    def is_close(self, other: "Paced") -> bool:
        """Whether both are the same, but for rounding."""
        if self.arms.keys() != other.arms.keys():
            return False
        pairs = [(self.price, other.price), (self.debt, other.debt)]
        for arm, average in self.arms.items():
            pairs += zip(average, other.arms[arm], strict=True)
        return all(isclose(ours, theirs, abs_tol=1e-9) for ours, theirs in pairs)


def _pace(paced: Paced, arm: str, spent: float, ceiling: Ceiling) -> Paced:
    """Take a step of mirror descent on the dual of the budget: the price times the exponential of it.

    Source: Balseiro, Lu and Mirrokni 2023, The best of many worlds: dual mirror descent for online allocation
    problems. A step of 4 in a window that costs twice the ceiling; of one request 20 ceilings count; half a
    ceiling is paid back; debts end at two windows; prices are from a thousandth to a thousand, and begin at
    a tenth.
    """
    a_window = ceiling.steps * ceiling.window
    over = spent / ceiling.steps - 1.0
    step = (min(over, 20.0) + max(-0.5, min(0.5, paced.debt / a_window))) * 4.0 / ceiling.window
    scaled = max(1e-3, min(1e3, (paced.price * ceiling.steps or 0.1) * exp(step)))
    debt = max(-2.0 * a_window, min(2.0 * a_window, paced.debt + spent - ceiling.steps))
    n, mean = paced.arms.get(arm, (0, spent))
    n = min(n + 1, ceiling.window)
    return Paced(scaled / ceiling.steps, debt, {**paced.arms, arm: (n, mean + (spent - mean) / n)})


def find_wrong_prices(tables: Tables, ceiling: Ceiling) -> Iterator[Fault]:
    """Yield prices that do not follow from the one before and the costs since.

    The first price counts from wherever the log ended when the learner first began.
    """
    decisions = {row["id"]: row for row in tables["decisions"]}
    spent = [
        (row["seq"], decisions[row["decision_id"]]["drawn"], float(row["steps"]))
        for row in sorted(tables["executions"], key=lambda row: int(row["seq"]))
        if row["decision_id"] in decisions and decisions[row["decision_id"]]["mode"] != "forced"
    ]

    def follows(row: Row, paced: Paced, after: int) -> bool:
        for seq, arm, steps in spent:
            if after < seq <= row["log_seq"]:
                paced = _pace(paced, arm, steps, ceiling)
        return paced.is_close(Paced.read(row))

    before: Row | None = None
    for row in sorted(tables["prices"], key=lambda row: int(row["seq"])):
        if before is None:
            right = any(follows(row, Paced(), after) for after in range(row["log_seq"]))
        else:
            right = follows(row, Paced.read(before), before["log_seq"])
        if not right:
            yield Fault("price", f"{dict(row)} does not follow from {before and dict(before)}")
        before = row


def find_other_prices(tables: Tables, calm_from: Sequence[float]) -> Iterator[Fault]:
    """Yield decisions at another price, or with other costs, than a replica could know.

    Args:
        tables: The log; the clocks of all processes agree.
        calm_from: Moments from which on every replica can read the log, in order, seconds since the epoch.
    """
    prices = sorted(tables["prices"], key=lambda row: int(row["seq"]))
    for row in (one for one in tables["decisions"] if one["mode"] == "explore"):
        at = row["decided_at"]
        follows = _is_calm(calm_from, at)
        n_read = sum(price["at"] + FOLLOWED_S < at for price in prices) if follows else 0
        could = [price for price in prices[max(0, n_read - 1) :] if price["at"] <= at]
        due = [(price["price"], _read_costs(price, row["arms"])) for price in could]
        due += [] if n_read else [(0.0, [])]
        budget = row["steps"].get("budget", {"price": 0.0, "costs": {}})
        price, costs = budget["price"], [*budget["costs"].values()]
        if (price, costs) not in due:
            what = f"{row['id']} was decided at {price} and {costs}, where it could be {due}"
            yield Fault("price", what)


def _read_floor(row: Row) -> float:
    return float(row["steps"].get("floor", {}).get("least", 0.0))


def _read_costs(price: Row, arms: Sequence[str]) -> list[float]:
    means = {arm: mean for arm, (_, mean) in price["arms"].items()}
    return [means.get(arm, 0.0) for arm in arms]


# -- alarms, limits, erasures -------------------------------------------------------------------------------


def find_other_alarms(tables: Tables, detected: Iterable[tuple[str, int]]) -> Iterator[Fault]:
    """Yield alarms that are missing, double or of no change.

    Args:
        tables: The log.
        detected: Subject and position in the training log of the changes that the service's detectors find
            when they read it in one go.
    """
    due = Counter(detected)
    found = Counter((row["subject"], row["example_seq"]) for row in tables["alarms"])
    for kind, some in (("missing", due - found), ("there, and should not be", found - due)):
        for subject, seq in some:
            yield Fault("alarm", f"that {subject!r} has changed at example {seq} is {kind}")


def find_beyond_limits(admitted: Iterable[Admitted]) -> Iterator[Fault]:
    """Yield keys of which a replica admitted more requests in a minute of the clock than their limit."""
    within: Counter[tuple[str, str, int, int]] = Counter()
    for one in admitted:
        minute = int(one.begun_at // MINUTE_S)
        if minute == int(one.ended_at // MINUTE_S):
            within[one.key, one.replica, one.limit, minute] += 1
    for (key, replica, limit, minute), requests in within.items():
        if requests > limit:
            text = f"{replica} admitted key {key} {requests} times in minute {minute}: its limit is {limit}"
            yield Fault("quota", text)


def find_lost_evaluations(history: History, tables: Tables, *, settled: bool) -> Iterator[Fault]:
    """Yield evaluations that were accepted and are not there, have not ended, or have another's result."""
    rows = {row["seq"]: row for row in tables["jobs"]}
    for number, candidates in history.evaluations:
        row = rows.get(number)
        if row is None:
            yield Fault("lost", f"evaluation {number} is not there")
        elif settled and row["status"] != "done":
            yield Fault("lost", f"evaluation {number} is {row['status']}: {row['error']}")
        elif settled and tuple(row["result"]["asked"]["candidates"]) != candidates:
            what = f"evaluation {number} was asked for {candidates}, and its result is {row['result']}"
            yield Fault("changed", what)


def find_texts(history: History, tables: Tables) -> Iterator[Fault]:
    """Yield rows that hold a word of an erased text."""
    for erased in (one for one in history.erased if one.done):
        for table, column in TEXTS.items():
            for row in tables[table]:
                if any(word in str(row[column]) for word in erased.words):
                    where = f"{table}.{column} at {row['seq']}"
                    yield Fault("erased", f"a text of {erased.decision_id} is in {where}")


def _group(rows: Iterable[Row], key: str) -> dict[Any, list[Row]]:
    grouped: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        grouped[row[key]].append(row)
    return grouped


def find_faults(history: History, tables: Tables, rule: Rule, *, settled: bool) -> list[Fault]:
    """Return everything that is wrong with a log.

    Args:
        history: What callers were told.
        tables: The log.
        rule: How feedback becomes what is learned.
        settled: Whether the log has come to rest, so that what is ready has been learned.
    """
    return [
        *history.odd,
        *find_lost(history, tables),
        *find_gaps(tables),
        *find_wrongly_learned(tables, rule, settled=settled),
        *find_backward_versions(tables),
        *find_odd_draws(tables),
        *find_beyond_limits(history.admitted),
        *find_texts(history, tables),
    ]
