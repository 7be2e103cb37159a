"""The contexts that a recipe learns from: as logged, but with the scores of the recipe's router.

The router score of an arm is a feature of that arm. A decision has the scores of the router that served it;
a recipe needs those of its router, and takes them from:

    decisions of a version with that router          the context
    decisions of which a canary had that router      the scores that the canary saw
    other decisions                                  the scores that were stored since, if any

A score is stored once, by the process that needs it first, and is final. So what is learned stays a function
of the log. A recipe without a router learns from contexts stripped of the scores of promoted routers.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import sqlalchemy as sa
from orjson import loads

from armwise.feedback.events import Context, Decision, Example, Mode
from armwise.feedback.log import Store, rows
from armwise.feedback.log import tables as t

CHUNK = 500
"""Examples that are looked up together."""

_d, _v, _s = t.decisions.c, t.versions.c, t.router_scores.c


def with_router(store: Store, examples: Iterable[Example], router: str | None) -> Iterator[Example]:
    """Yield examples with the contexts that a recipe learns from."""
    with store.reading() as connection:
        is_any = connection.scalar(_ANY_ROUTER) is not None
    if router is None and not is_any:
        yield from examples
        return
    rest = iter(examples)
    while batch := list(islice(rest, CHUNK)):
        contexts = read_contexts(store, [example.decision for example in batch], router)
        for example, context in zip(batch, contexts, strict=True):
            decision = example.decision
            if context is decision.context:
                yield example
            else:
                yield replace(example, decision=replace(decision, context=context))


def read_contexts(store: Store, decisions: Sequence[Decision], router: str | None) -> list[Context]:
    """Return the context of each decision with the scores of a router; see `with_router`."""
    numbers = {
        number for decision in decisions for number in (decision.version, decision.candidate) if number
    }
    with store.reading() as connection:
        rows_of_versions = connection.execute(_ROUTERS, {"numbers": list(numbers)})
        routers: dict[int, str] = {row[0]: row[1] for row in rows_of_versions}
        stored = {}
        if router is not None:
            ids = [decision.id for decision in decisions if routers.get(decision.version) != router]
            scored = connection.execute(_SCORES, {"digest": router, "ids": ids})
            stored = {row[0]: loads(row[1] or "null") for row in scored}

    def read_context(decision: Decision) -> Context:
        if routers.get(decision.version) == router:
            return decision.context
        if decision.candidate and routers.get(decision.candidate) == router:
            return decision.candidate_context
        return decision.context.with_scores(stored.get(decision.id) or {})

    return [read_context(decision) for decision in decisions]


_WITH_ROUTER = sa.select(_v.version, _v.router).where(_v.router.is_not(None))

_ROUTERS = _WITH_ROUTER.where(_v.version.in_(sa.bindparam("numbers", expanding=True)))

_SCORES = sa.select(_s.decision_id, sa.cast(_s.scores, sa.Text)).where(
    _s.router == sa.bindparam("digest"), _s.decision_id.in_(sa.bindparam("ids", expanding=True))
)

_ANY_ROUTER = _WITH_ROUTER.limit(1)


def list_unscored(
    store: Store, router: str, *, newest: int | None = None, join: str = "", after: int = 0, upto: int = 0
) -> list[tuple[str, str]]:
    """Return the ids and questions of decisions that lack the scores of a router.

    Args:
        store: The log.
        router: Digest of the router.
        newest: Number of the newest explored decisions to return; None: return decisions of examples.
        join: Digest of the training log that has the examples.
        after: Position in it of the example before the first.
        upto: Position in it of the last example.
    """
    query = _without_scores(
        sa.select(_d.id, rows.select_text(t.decisions, "question").label("question")), router
    )
    if newest is None:
        x = t.examples.c
        query = query.join(t.examples, x.decision_id == _d.id)
        query = query.where(x.join == join, x.seq > after, x.seq <= upto)
    else:
        query = query.where(_d.mode == Mode.EXPLORE.value).order_by(_d.seq.desc()).limit(newest)
    with store.reading() as connection:
        return [(row.id, row.question or "") for row in connection.execute(query)]


def leave_unscored(store: Store, router: str, before: str) -> None:
    """Store, finally, that decisions that lack scores of a router stay without them.

    So every later reader learns from the same contexts as the first.
    """
    query = _without_scores(sa.select(_d.seq, _d.id), router).order_by(_d.seq.desc()).limit(CHUNK)
    with store.reading() as connection:
        last = connection.scalar(sa.select(_d.seq).where(_d.id == before))
    while last is not None:
        with store.reading() as connection:
            page = connection.execute(query.where(_d.seq < last)).all()
        store_scores(store, router, dict.fromkeys(row.id for row in page))
        last = page[-1].seq if page else None


def _without_scores(query: sa.Select[Any], router: str) -> sa.Select[Any]:
    """Narrow a query of decisions to those that lack the scores of a router and can still get them."""
    serving, canary = t.versions.alias(), t.versions.alias()
    query = query.outerjoin_from(
        t.decisions, t.router_scores, (_s.router == router) & (_s.decision_id == _d.id)
    )
    query = query.outerjoin(serving, serving.c.version == _d.version)
    query = query.outerjoin(canary, canary.c.version == rows.CANDIDATE)
    return query.where(
        _s.decision_id.is_(None),
        _d.erased.is_(None),
        serving.c.router.is_distinct_from(router),
        canary.c.router.is_distinct_from(router),
    )


def read_decisions(store: Store, ids: Sequence[str]) -> list[Decision]:
    """Return decisions of the log by their ids, in this order."""
    with store.reading() as connection:
        loaded = rows.load_decisions(connection, ids)
    return [loaded[name] for name in ids]


def store_scores(store: Store, router: str, scores: Mapping[str, Mapping[str, float] | None]) -> None:
    """Store the scores of a router on decisions, by id and arm; None: it has no scores for the decision.

    Decisions that already have scores keep them.
    """
    names = list(scores)
    for first in range(0, len(names), CHUNK):
        some = names[first : first + CHUNK]
        with store.writing() as connection:
            there = sa.select(_s.decision_id).where(_s.router == router, _s.decision_id.in_(some))
            scored = set(connection.scalars(there))
            new = [
                {"router": router, "decision_id": name, "scores": scores[name]}
                for name in some
                if name not in scored
            ]
            if new:
                connection.execute(sa.insert(t.router_scores), new)
