"""Read rows of the log as facts: the columns to select, and the functions that build facts from them."""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from math import fsum, isfinite
from operator import attrgetter
from typing import Any, TypeVar, cast

import sqlalchemy as sa
from orjson import loads
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler

from armwise.feedback.events import (
    Context,
    Cost,
    Decision,
    Execution,
    Feedback,
    FeedbackKind,
    Mode,
    ModelTokens,
    Observation,
    ObservationSource,
    Status,
)
from armwise.feedback.log import tables as t
from armwise.feedback.reward import NUMBERS, RewardRule

logger = logging.getLogger(__name__)

LOOKED_UP = 10_000
"""Ids in one statement: databases limit the number of parameters."""

IDS: sa.BindParameter[Sequence[str]] = sa.bindparam("ids", expanding=True)


def look_up(
    connection: sa.Connection, query: sa.Select[Any], ids: Collection[str], **values: object
) -> Iterator[Any]:
    """Yield the rows of a query about the ids `IDS`, some at a time; without ids, ask nothing."""
    names = ids if isinstance(ids, Sequence) else sorted(ids)
    for first in range(0, len(names), LOOKED_UP):
        yield from connection.execute(query, {**values, "ids": names[first : first + LOOKED_UP]}).all()


def insert(connection: sa.Connection, table: sa.Table, row: Mapping[str, object]) -> int:
    """Insert a row into a table whose rows the database numbers, and return its number."""
    result = connection.execute(sa.insert(table), row)
    assert result.inserted_primary_key is not None
    return int(result.inserted_primary_key[0])


def _text(column: sa.ColumnElement[Any]) -> sa.ColumnElement[str]:
    """Return a JSON column as text, so that it is decoded row by row rather than for all rows at once."""
    return sa.cast(column, sa.Text)


def select_texts(table: sa.Table) -> sa.ColumnElement[str]:
    """Return the texts of a fact, as JSON; NULL: it has none, or they were erased."""
    return _select_part(table, _text(t.texts.c.document)).label("texts")


def select_text(table: sa.Table, name: str) -> sa.ColumnElement[str]:
    """Return one text of a fact; NULL: it has none, or it was erased."""
    return _select_part(table, t.texts.c.document[name].as_string())


def _select_part(table: sa.Table, part: sa.ColumnElement[str]) -> sa.ScalarSelect[str]:
    return sa.select(part).where(t.texts.c.seq == table.c.seq).correlate(table).scalar_subquery()


OBSERVATIONS, FEEDBACK = (sa.select(table, select_texts(table)) for table in (t.observations, t.feedback))
"""Queries of the rows that `read_observation` and `read_feedback` read."""


def read_observation(row: sa.Row[Any]) -> Observation:
    """Return the fact in a row of `OBSERVATIONS`; all of the judge's tokens become prompt tokens."""
    texts = loads(row.texts or "{}")
    return Observation(
        row.decision_id,
        ObservationSource(row.source),
        row.arm,
        row.share,
        row.propensity,
        row.value,
        read_cost(row),
        row.judge,
        Cost(prompt_tokens=row.judge_tokens, llm_s=row.judge_s, usd=row.judge_usd),
        row.swapped,
        tuple(texts.get("passages", ())),
        texts.get("answer", "" if row.answered else None),
        texts.get("error", ""),
        row.observed_at,
    )


def read_feedback(row: sa.Row[Any]) -> Feedback:
    """Return the fact in a row of `FEEDBACK`."""
    texts = loads(row.texts or "{}")
    return Feedback(
        row.id,
        row.decision_id,
        row.metric,
        row.value,
        row.received_at,
        row.event_time,
        texts.get("tags", {}),
        row.episode_id,
        FeedbackKind(row.kind),
        row.source,
        row.key,
        {**(row.labels or {}), **texts.get("content", {})},
        row.rater,
    )


class StepNumber(sa.ColumnElement[float]):
    """A number in the record of a step; NULL: the step took no part.

    Its path is a part of the statement, so that a driver may run it without SQLAlchemy.

    Args:
        step: Name of the step.
        name: Name of the number.
    """

    inherit_cache = True
    type = sa.Double()

    def __init__(self, step: str, name: str) -> None:
        self.step, self.name = step, name


@compiles(StepNumber)
def _compile_step_number(number: StepNumber, compiler: SQLCompiler, **options: Any) -> str:
    steps = compiler.process(t.decisions.c.steps, **options)
    if compiler.dialect.name == "sqlite":
        return f"json_extract({steps}, '$.{number.step}.{number.name}')"
    return f"CAST({steps} -> '{number.step}' ->> '{number.name}' AS DOUBLE PRECISION)"


CANDIDATE = StepNumber("canary", "version")
"""The candidate version that took a share of a decision; NULL: none did."""

DECISION = (
    t.decisions.c.id,
    select_texts(t.decisions),
    _text(t.decisions.c.features),
    _text(t.decisions.c.arms),
    _text(t.decisions.c.probabilities),
    t.decisions.c.drawn,
    t.decisions.c.policy,
    t.decisions.c.version,
    t.decisions.c.mode,
    t.decisions.c.decided_at,
    t.decisions.c.deadline,
    t.decisions.c.episode_id,
    t.decisions.c.request_digest,
    t.decisions.c.draw_id,
    t.decisions.c.deferred,
    _text(t.decisions.c.steps),
    t.decisions.c.erased,
    t.decisions.c.asked_by,
)
"""The columns that `read_decision` reads, in its order."""

_ID, _TEXTS, _, *_REST = DECISION

WITHOUT_FEATURES: tuple[sa.ColumnElement[Any], ...] = (
    _ID,
    _TEXTS,
    sa.literal('{"sparse": {}, "embedding": [], "arms": {}}'),
    *_REST,
)
"""The columns of `DECISION`, with empty features, which are most of a row."""


def read_decision(row: Sequence[Any]) -> Decision:
    """Return the fact in the columns `DECISION`."""
    name, texts, features, arms, probabilities, drawn, policy, version, mode, *rest = row
    decided_at, deadline, episode_id, request_digest, draw_id, deferred, *rest = rest
    steps, erased, asked_by = rest
    stored = loads(features)
    return Decision(
        name,
        read_context(texts, stored),
        tuple(loads(arms)),
        tuple(loads(probabilities)),
        drawn,
        policy,
        version,
        Mode(mode),
        decided_at,
        deadline,
        episode_id,
        request_digest,
        deferred,
        stored.get("masked", {}),
        loads(steps),
        stored.get("trace", ""),
        draw_id,
        erased=erased is not None,
        asked_by=asked_by,
    )


def read_context(texts: str | None, features: Mapping[str, Any]) -> Context:
    """Return what a policy saw, from the texts of a decision, as JSON, and its features."""
    read, sparse = loads(texts or "{}"), features["sparse"]
    if names := read.get("names"):
        sparse = dict(zip(names, sparse.values(), strict=False))  # a list leaves features out
    return Context(read.get("question", ""), sparse, tuple(features["embedding"]), features["arms"])


Row = TypeVar("Row")

Fact = TypeVar("Fact")


def readable(
    rows: Iterable[Row], read: Callable[[Row], Fact], name: Callable[[Row], str] = attrgetter("id")
) -> Iterator[Fact]:
    """Yield the facts in rows; rows that cannot be read are skipped, counted and named in the process's log.

    Args:
        rows: Rows of decisions.
        read: Returns the fact in a row; raises if a document is no JSON, or has another shape.
        name: Returns the id of the decision.
    """
    n_skipped = 0
    for row in rows:
        try:
            fact = read(row)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            n_skipped += 1
            logger.warning(
                "skipped decision %r, which cannot be read (%d so far): %s", name(row), n_skipped, error
            )
        else:
            yield fact


def load_decisions(connection: sa.Connection, ids: Sequence[str]) -> dict[str, Decision]:
    """Return the decisions that exist among `ids`."""
    rows = connection.execute(_DECISIONS, {"ids": ids})
    return {row[0]: read_decision(row) for row in rows}


_DECISIONS = sa.select(*DECISION).where(t.decisions.c.id.in_(sa.bindparam("ids", expanding=True)))


COST = (
    t.executions.c.steps,
    t.executions.c.prompt_tokens,
    t.executions.c.completion_tokens,
    t.executions.c.retrieval_s,
    t.executions.c.llm_s,
    t.executions.c.usd,
)
"""The raw cost vector of an execution, in the order of `Cost`."""


def finite_cost(*parts: float) -> Cost:
    """Return a raw cost vector. Raises ValueError if a part is not finite."""
    if not isfinite(fsum(parts)):
        raise ValueError(f"its cost {parts} is not finite")
    return Cost(*parts)  # type: ignore[arg-type]


def read_cost(row: sa.Row[Any]) -> Cost:
    """Return the raw cost vector in a row of `executions`."""
    return Cost(row.steps, row.prompt_tokens, row.completion_tokens, row.retrieval_s, row.llm_s, row.usd)


def read_tokens(stored: Mapping[str, Sequence[float]] | None) -> dict[str, ModelTokens]:
    """Return the tokens by model of a row of `executions`."""
    return {name: cast(ModelTokens, tuple(tokens)) for name, tokens in (stored or {}).items()}


def load_executions(connection: sa.Connection, ids: Sequence[str]) -> dict[str, Execution]:
    """Return the executions that exist among the decisions `ids`."""
    rows = connection.execute(_EXECUTIONS, {"ids": ids})
    return {
        row.decision_id: Execution(
            row.decision_id,
            row.served,
            Status(row.status),
            read_cost(row),
            tuple(texts.get("passages", ())),
            texts.get("answer", "" if row.answered else None),
            texts.get("error", ""),
            row.finished_at,
            tuple(texts.get("stages", ())),
            row.index_version or "",
            row.cached,
            read_tokens(row.tokens_by_model),
            row.finish_reason,
            tuple(texts.get("marks", ())),
        )
        for row in rows
        for texts in [loads(row.texts or "{}")]
    }


_EXECUTIONS = sa.select(t.executions, select_texts(t.executions)).where(
    t.executions.c.decision_id.in_(sa.bindparam("ids", expanding=True))
)


# -- the turns of a conversation that an example stands for ----------------------------------------


def sum_turns(executions: Sequence[Execution]) -> dict[str, Any]:
    """Return the summed cost of turns, as stored in a row of `examples`.

    >>> from armwise.feedback.events import Status
    >>> two = [Execution("d1", "a", Status.OK, Cost(steps=n, usd=0.5)) for n in (1, 2)]
    >>> sum_turns(two)["n"], sum_turns(two)["cost"]["steps"], sum_turns(two)["cost"]["usd"]
    (2, 3, 1.0)
    """
    costs = [execution.cost for execution in executions]
    tokens: dict[str, list[float]] = {}
    for name in sorted({name for execution in executions for name in execution.tokens_by_model}):
        used = [
            execution.tokens_by_model[name] for execution in executions if name in execution.tokens_by_model
        ]
        width = max(map(len, used))
        tokens[name] = [_sum(counts[i] for counts in used if i < len(counts)) for i in range(width)]
    cost = {part.name: _sum(getattr(spent, part.name) for spent in costs) for part in fields(Cost)}
    return {"n": len(executions), "cost": cost, "tokens_by_model": tokens}


def _sum(numbers: Iterable[float]) -> float:
    """Return the sum of whole numbers as a whole number, and of others correctly rounded."""
    numbers = list(numbers)
    return sum(numbers) if all(isinstance(number, int) for number in numbers) else fsum(numbers)


def read_spending(
    turns: Mapping[str, Any] | None, cost: Cost, tokens_by_model: Mapping[str, Sequence[float]] | None
) -> tuple[Cost, dict[str, ModelTokens], int]:
    """Return cost, tokens by model and number of the turns of an example.

    Args:
        turns: Column of that name; None: the example stands for its decision alone.
        cost: Cost of the decision.
        tokens_by_model: Tokens of the decision.
    """
    if turns is None:
        return cost, read_tokens(tokens_by_model), 1
    return Cost(**turns["cost"]), read_tokens(turns["tokens_by_model"]), turns["n"]


def compute_reward(
    rule: RewardRule,
    turns: Mapping[str, Any] | None,
    cost: Cost,
    tokens_by_model: Mapping[str, Sequence[float]] | None,
    metrics: str,
    *,
    failed: bool,
) -> float | None:
    """Return the reward of an example from its columns, if the rule declares one for it.

    Args:
        rule: The rule.
        turns: The turns of the example, as for `read_spending`.
        cost: Cost of the decision.
        tokens_by_model: Tokens of the decision.
        metrics: Aggregated values by metric, as JSON.
        failed: Whether the drawn arm failed.
    """
    total = rule.price(*read_spending(turns, cost, tokens_by_model))
    return rule.formula(loads(metrics), total, failed=failed, arithmetic=NUMBERS)
