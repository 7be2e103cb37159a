"""What must hold of a log after any number of kills, checked against what clients received.

    lost           an acknowledged decision, execution or feedback is not in the log
    changed        it is there, and differs from what its client received
    gap            the positions of the facts are not 1, 2, ... up to the head of the log
    twice          a decision is in the training log more than once
    training log   it is not what a fold of all facts from the first one gives
    digest         a version is not what a replay of the training log from its start gives
    untrue         a decision was not drawn from the distribution of the version that it names

    rebuild        `armwise rebuild --verify --all` says so

The last four are computed in a process of their own, which has seen nothing but the log.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import sqlalchemy as sa

from armwise.agent.config import AppConfig, parse
from armwise.agent.learning import Recipe, rebuild
from armwise.agent.policies import Policy, build_policy, choose, sampling, served_distribution
from armwise.agent.turn import Choices, is_text
from armwise.feedback.events import Decision, Mode
from armwise.feedback.log import Store
from armwise.feedback.log import rows as log_rows
from armwise.feedback.log import tables as t
from armwise.feedback.registry import versions as registry_versions
from armwise.feedback.training_log import read_examples, read_position
from armwise.feedback.training_log.join import Fold, Joined, rated_rows, read_facts, read_head
from benchmarks.crash_children import fresh_process
from benchmarks.crash_ledger import Answered, Kept, Ledger

CHUNK = 5000
FACTS = (t.decisions, t.executions, t.feedback, t.observations, t.ticks)


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that must not be.

    Attributes:
        kind: One of those that the module names.
        what: What was found, and what was expected.
        round: The kill after which it was acknowledged, counted from 0; None where it was not.
        version: The version that is wrong, or was drawn from; None where it is about none.
    """

    kind: str
    what: str
    round: int | None = None
    version: int | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a log.

    Attributes:
        faults: All that is wrong.
        facts: Length of the log.
        examples: Length of the training log.
        versions: Those that were compared with the replay.
        decisions: Decisions whose distribution was computed again.
    """

    faults: tuple[Fault, ...] = ()
    facts: int = 0
    examples: int = 0
    versions: tuple[int, ...] = ()
    decisions: int = 0


def audit(document: dict[str, Any], ledger: Ledger) -> Verdict:
    """Check a log without writers."""
    config = parse(document)
    store = Store(config.database_url, config.reward.join)
    try:
        faults = (*_answers(store, ledger.answered), *_feedback(store, ledger.kept))
    finally:
        store.close()
    verdict = fresh_process(verify, document)
    return Verdict(
        (*faults, *verdict.faults), verdict.facts, verdict.examples, verdict.versions, verdict.decisions
    )


# -- against the clients -------------------------------------------------------------------------------------


def _answers(store: Store, answered: Sequence[Answered]) -> Iterator[Fault]:
    decisions, executions = _decisions(store), _rows(store, t.executions, "decision_id")
    for answer in answered:
        logged, ran = decisions.get(answer.id), executions.get((answer.id,), [])
        if logged is None:
            yield Fault("lost", f"decision {answer.id} is not there", answer.round)
        elif answer.fields and (now := _fields_of(logged)) != answer.fields:
            yield Fault(
                "changed", f"decision {answer.id} was received as {answer.fields}, and is {now}", answer.round
            )
        if answer.status is None:
            continue
        if len(ran) != 1:
            yield Fault("lost", f"the execution of {answer.id} is there {len(ran)} times", answer.round)
        elif ran[0].status != answer.status or (
            answer.fields and (ran[0].served, _text(ran[0].answer)) != (answer.served, answer.text or "")
        ):
            yield Fault(
                "changed",
                f"the execution of {answer.id} was received as {answer}, and is {ran[0]}",
                answer.round,
            )


def _text(recorded: str | None) -> str:
    """Return the text of an answer that may call functions as well."""
    return recorded or "" if recorded is None or is_text(recorded) else Choices.of(recorded).text or ""


def _decisions(store: Store) -> dict[str, Decision]:
    """Return every decision by its id; that an id is there once only is what its key is for."""
    with store.reading() as connection:
        ids = connection.scalars(sa.select(t.decisions.c.id)).all()
        chunks = (ids[first : first + CHUNK] for first in range(0, len(ids), CHUNK))
        return {
            name: decision
            for chunk in chunks
            for name, decision in log_rows.load_decisions(connection, chunk).items()
        }


def _rows(store: Store, table: sa.Table, *key: str) -> dict[tuple[str, ...], list[Any]]:
    rows_by_key: defaultdict[tuple[str, ...], list[Any]] = defaultdict(list)
    with store.reading() as connection:
        for row in connection.execute(sa.select(table)):
            rows_by_key[tuple(getattr(row, part) for part in key)].append(row)
    return rows_by_key


def _fields_of(decision: Decision) -> dict[str, Any]:
    """Return the fields that an answer should have of a decision."""
    return {
        "decision_id": decision.id,
        "episode_id": decision.episode_id,
        "policy_version": decision.version,
        "mode": decision.mode.value,
        "arm_drawn": decision.drawn,
        "propensity": decision.propensity,
        "pmf": dict(zip(decision.arms, decision.probabilities, strict=True)),
        "reward_deadline": decision.deadline,
    }


def _feedback(store: Store, kept: Sequence[Kept]) -> Iterator[Fault]:
    rows = _rows(store, t.feedback, "id", "kind")
    for fact in kept:
        matches = rows.get((fact.id, fact.content[0]), [])
        if len(matches) != 1:
            yield Fault("lost", f"feedback {fact.id} is there {len(matches)} times", fact.round)
            continue
        row = matches[0]
        logged = (row.kind, row.decision_id, row.episode_id, row.metric, row.value)
        if (logged, row.seq) != (fact.content, fact.seq):
            what = (
                f"feedback {fact.id} was received as {fact.content} at {fact.seq}, "
                f"and is {logged} at {row.seq}"
            )
            yield Fault("changed", what, fact.round)


# -- against a life without a kill ---------------------------------------------------------------------------


def verify(document: dict[str, Any]) -> Verdict:
    """Fold and replay a log from its first fact, and compare."""
    config = parse(document)
    store = Store(config.database_url, config.reward.join)
    try:
        faults = [*_positions(store), *_training_log(store, config)]
        with store.reading() as connection:
            facts, joined = read_head(connection), read_position(connection, config.reward.join)
            versions = connection.execute(
                sa.select(t.versions)
                .where(t.versions.c.recipe == Recipe.configured(config).digest)
                .order_by(t.versions.c.version)
            ).all()
        wrong, decisions = _replayed(store, config, versions)
        report = rebuild(store, config, lambda *_: None, every=True)
        differs = [
            Fault("rebuild", f"{comparison}", version=comparison.version)
            for comparison in report.compared
            if not comparison.equal
        ]
        compared = tuple(row.version for row in versions)
        return Verdict((*faults, *wrong, *differs), facts, joined.examples_seq, compared, decisions)
    finally:
        store.close()


def _positions(store: Store) -> Iterator[Fault]:
    with store.reading() as connection:
        given = Counter(seq for table in FACTS for seq in connection.scalars(sa.select(table.c.seq)))
        head = read_head(connection)
    if given != Counter(range(1, head + 1)):
        missing = sorted(set(range(1, head + 1)) - given.keys())
        double = sorted(seq for seq, times in given.items() if times > 1)
        beyond = sorted(given.keys() - set(range(1, head + 1)))
        yield Fault(
            "gap", f"of {head} positions {missing} are missing, {double} double, {beyond} out of range"
        )


def _training_log(store: Store, config: AppConfig) -> Iterator[Fault]:
    """Compare the training log, and who rated, with a fold of all facts from the first one."""
    rule, x, r = config.reward, t.examples.c, t.raters.c
    fold = Fold(rule)
    ready: list[Joined] = []
    with store.reading() as connection:
        position = read_position(connection, rule.join)
        while fold.seq < position.log_seq:
            for fact in read_facts(connection, fold.seq, min(position.log_seq, fold.seq + CHUNK)):
                ready += fold.apply(fact)
        rows = connection.execute(sa.select(t.examples).where(x.join == rule.join).order_by(x.seq)).all()
        rated = sa.select(r.seq, r.decision_id, r.rater, r.learned, r.joined_by).where(r.join == rule.join)
        raters = [dict(row) for row in connection.execute(rated.order_by(r.seq)).mappings()]
    for name, times in Counter(row.decision_id for row in rows).items():
        if times > 1:
            yield Fault("twice", f"decision {name} is in the training log {times} times")
    joined = [(row.decision_id, row.metrics, row.joined_by) for row in rows]
    expected = [(one.decision_id, one.metrics, one.by) for one in ready if one.learned]
    if [row.seq for row in rows] != list(range(1, len(rows) + 1)):
        yield Fault("training log", f"its {len(rows)} rows are not numbered from 1")
    for what, found, due in (("row", joined, expected), ("rater", raters, rated_rows(ready, 0))):
        if found != due:
            pairs = enumerate(zip_longest(found, due), start=1)
            at, (actual, other) = next((seq, pair) for seq, pair in pairs if pair[0] != pair[1])
            yield Fault(
                "training log", f"{what} {at} is {actual}, and a fold from the first fact gives {other}"
            )


def _replayed(store: Store, config: AppConfig, versions: Sequence[Any]) -> tuple[list[Fault], int]:
    """Learn the training log from its start; compare every version, and every draw from one."""
    faults: list[Fault] = []
    drawn: defaultdict[int, list[Decision]] = defaultdict(list)
    for decision in _decisions(store).values():
        drawn[decision.version].append(decision)
    decided = sum(map(len, drawn.values()))
    empty = build_policy(config.policy, list(config.actions))
    replay = build_policy(config.policy, list(config.actions))
    learned = 0
    for row in versions:
        for example in read_examples(store, config.reward.join, learned, row.examples_seq):
            reward = config.reward.compute_reward(example)
            if reward is not None:
                replay.learn(example.decision, reward)
            learned = example.seq
        state = replay.save()
        if registry_versions.digest_state(state) != row.digest:
            faults.append(
                Fault(
                    "digest",
                    f"version {row.version} is not the replay of {row.examples_seq}",
                    version=row.version,
                )
            )
        if decisions := drawn.pop(row.version, []):
            faults += _untrue(empty.load(state), decisions, store.draw_secret.salt(config.salt))
    faults += [Fault("untrue", f"there is no version {name}", version=name) for name in drawn]
    return faults, decided


def _untrue(policy: Policy, decisions: Sequence[Decision], salt: str) -> Iterator[Fault]:
    for decision in decisions:
        if decision.mode is Mode.FORCED:
            right = (decision.probabilities, decision.arms) == ((1.0,), (decision.drawn,))
        else:
            p = served_distribution(
                policy, decision.context, decision.arms, decision.floor or 0.0, decision.penalty
            )
            explored = decision.mode is Mode.EXPLORE
            index = (
                choose(p, sampling.uniform_from(decision.id, salt, decision.arms))
                if explored
                else int(p.argmax())
            )
            right = tuple(p.tolist()) == decision.probabilities and decision.arms[index] == decision.drawn
        if not right:
            yield Fault(
                "untrue", f"decision {decision.id} was not drawn from its version", version=decision.version
            )
