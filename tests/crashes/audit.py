"""What must hold of a log after any number of kills, checked against what clients received.

What clients received is compared by `tests.simulation.history`, which lists its kinds of faults. Besides:

    training log   it is not what a fold of all facts from the first one gives
    digest         a version is not what a replay of the training log from its start gives
    untrue         a decision was not drawn from the distribution of the version that it names

    rebuild        `armwise log rebuild --verify --all` says so

These are computed in a process of their own, which has seen nothing but the log.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from armwise.agent.config import AppConfig, parse
from armwise.agent.learning import Recipe, verify_states
from armwise.agent.policies import Policy, build_policy, choose, compute_served_distribution, sampling
from armwise.agent.turn import Choices, is_text, load_built_in, weigh_arms
from armwise.feedback.clock import GRACE_S
from armwise.feedback.events import Decision, Mode
from armwise.feedback.log import Store
from armwise.feedback.log import rows as log_rows
from armwise.feedback.log import tables as t
from armwise.feedback.registry import versions as registry_versions
from armwise.feedback.reward import Complete
from armwise.feedback.training_log import read_examples, read_position
from armwise.feedback.training_log.joiner import read_head
from tests.crashes.children import fresh_process
from tests.crashes.ledger import Ledger
from tests.simulation.history import TABLES, Rule, Tables, find_faults, parse_rows

CHUNK = 5000


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
        faults = tuple(compare(store, config, ledger))
    finally:
        store.close()
    verdict = fresh_process(verify, document)
    return Verdict(
        (*faults, *verdict.faults), verdict.facts, verdict.examples, verdict.versions, verdict.decisions
    )


# -- against the clients -------------------------------------------------------------------------------------


def compare(store: Store, config: AppConfig, ledger: Ledger) -> Iterator[Fault]:
    """Compare a log with what clients received."""
    learned = config.reward
    rule = Rule(
        {name: metric.aggregation.value for name, metric in learned.metrics.items()},
        at_once=learned.complete is Complete.ANY,
        grace_s=GRACE_S,
        correction_s=learned.correction_s,
    )
    for fault in find_faults(ledger.history(), read_tables(store), rule, settled=False):
        yield Fault(fault.kind, fault.what, ledger.rounds.get(fault.about))


def read_tables(store: Store) -> Tables:
    """Return every row of the tables that a history is compared with, as the database has them."""
    tables = {}
    with store.reading() as connection:
        for name in TABLES:
            found = connection.exec_driver_sql(f"SELECT * FROM {name}")
            tables[name] = parse_rows(name, [*found.keys()], found)
    for row in tables["texts"]:
        if "answer" in row["document"]:
            row["document"] = {**row["document"], "answer": _text(row["document"]["answer"])}
    return tables


def _text(recorded: str | None) -> str:
    """Return the text of an answer that may call functions as well."""
    return recorded or "" if recorded is None or is_text(recorded) else Choices.parse(recorded).text or ""


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


# -- against a life without a kill ---------------------------------------------------------------------------


def verify(document: dict[str, Any]) -> Verdict:
    """Fold and replay a log from its first fact, and compare."""
    config = parse(document)
    store = Store(config.database_url, config.reward.join)
    try:
        with store.reading() as connection:
            facts, joined = read_head(connection), read_position(connection, config.reward.join)
            versions = connection.execute(
                sa.select(t.versions)
                .where(t.versions.c.recipe == Recipe.from_config(config).digest)
                .order_by(t.versions.c.version)
            ).all()
        wrong, decisions = _replayed(store, config, versions)
        report = verify_states(store, config, lambda *_: None, every=True)
        differs = [
            Fault("rebuild", f"{state}", version=state.version) for state in report.states if not state.equal
        ]
        compared = tuple(row.version for row in versions)
        return Verdict((*wrong, *differs), facts, joined.examples_seq, compared, decisions)
    finally:
        store.close()


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
            faults += _untrue(empty.load(state), decisions, store.draw_secret.salt)
    faults += [Fault("untrue", f"there is no version {name}", version=name) for name in drawn]
    return faults, decided


def _untrue(policy: Policy, decisions: Sequence[Decision], salt: str) -> Iterator[Fault]:
    for decision in decisions:
        if decision.mode is Mode.FORCED:
            right = (decision.probabilities, decision.arms) == ((1.0,), (decision.drawn,))
        else:
            penalty = weigh_arms(decision.steps, load_built_in(), decision.arms)
            p = compute_served_distribution(
                policy, decision.context, decision.arms, decision.floor or 0.0, penalty
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
