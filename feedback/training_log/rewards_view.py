"""The view `rewards` of the log's database: what each learned decision earned, for SQL without our code.

    SELECT decision, arm, propensity, reward, cost, net FROM rewards

It computes `RewardRule.compute_reward` in SQL from the training log of the rule, so it stores nothing, and a
changed rule scores all of history again. Decisions that the training log does not have are not in it: those
that still wait for feedback, and those that are never learned.
"""

import hashlib
import logging
from types import SimpleNamespace
from typing import Any, cast

import sqlalchemy as sa

from armwise.feedback.errors import LogUnavailableError, StoreError
from armwise.feedback.events import ARM_FAILURES, LABELS, Cost
from armwise.feedback.log import Store
from armwise.feedback.log import tables as t
from armwise.feedback.reward import Arithmetic, RewardRule

VIEW = "rewards"

MADE_SQLITE = f"SELECT sql FROM sqlite_master WHERE name = '{VIEW}'"
MADE_POSTGRESQL = f"SELECT obj_description(to_regclass('{VIEW}'), 'pg_class')"  # it rewrites what it stores
"""What says for which rule the view was made."""

Element = sa.ColumnElement[Any]

logger = logging.getLogger(__name__)


def create_rewards_view(store: Store, rule: RewardRule) -> None:
    """Make the view for a rule, in place of one of another rule; without it where the database refuses.

    A view that stays needs no lock: on PostgreSQL, replacing it would wait for everybody who reads it.
    """
    dialect = store.engine.dialect
    is_sqlite = dialect.name == "sqlite"
    query = _select_rewards(rule, _Json(is_sqlite=is_sqlite))
    text = str(query.compile(dialect=dialect, compile_kwargs={"literal_binds": True}))
    digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    made = f"CREATE VIEW {VIEW} AS {text}" if is_sqlite else digest
    try:
        with store.writing() as connection:
            if connection.exec_driver_sql(MADE_SQLITE if is_sqlite else MADE_POSTGRESQL).scalar() == made:
                return
            if is_sqlite:
                connection.exec_driver_sql(f"DROP VIEW IF EXISTS {VIEW}")
                connection.exec_driver_sql(made)
            else:  # views of others may read it, so that it is not dropped
                connection.exec_driver_sql(f"CREATE OR REPLACE VIEW {VIEW} AS {text}")
                connection.exec_driver_sql(f"COMMENT ON VIEW {VIEW} IS '{digest}'")
    except LogUnavailableError:
        raise
    except StoreError as error:
        logger.warning("the view %r could not be made, so SQL cannot read rewards: %s", VIEW, error)


def _clip(value: Element, low: float, high: float) -> Element:
    return sa.case((value < low, low), (value > high, high), else_=value)


SQL: Any = Arithmetic(lambda values: sum(values[1:], values[0]), cast(Any, _clip))
"""Arithmetic of columns of a database."""


def _select_rewards(rule: RewardRule, json: "_Json") -> sa.Select[Any]:
    """Return the query of the view."""
    d, e, x = t.decisions.c, t.executions.c, t.examples.c
    turns = json.at(x.turns, "n")
    cost: dict[str, Element] = {
        name: sa.func.coalesce(json.at(x.turns, "cost", name), sa.cast(e[name], sa.Double))
        for name in Cost.__dataclass_fields__
    }
    if rule.prices_tokens:
        tokens = json.objects(x.turns, "tokens_by_model"), json.objects(e.tokens_by_model)
        cost["usd"] = _usd_today(rule, cost["usd"], sa.func.coalesce(*tokens), json)
    priced = rule.cost.total(cast(Cost, SimpleNamespace(**cost))) / sa.func.coalesce(turns, 1.0)
    failed = e.status.in_([status.value for status in ARM_FAILURES])
    quality = sa.cast(sa.case((failed, rule.failed), else_=_quality(rule, json)), sa.Double)
    inner = (
        sa.select(
            d.id.label("decision"),
            d.drawn.label("arm"),
            d.propensity,
            quality.label("reward"),
            sa.cast(rule.cost_weight * priced, sa.Double).label("cost"),
        )
        .join(t.decisions, d.id == x.decision_id)
        .join(t.executions, e.decision_id == x.decision_id)
        .where(x.join == rule.join, d.policy != LABELS)
        .subquery("earned")
    )
    net = sa.cast(_clip(inner.c.reward - inner.c.cost, *rule.clip), sa.Double)
    return sa.select(*inner.c, net.label("net"))


def _quality(rule: RewardRule, json: "_Json") -> Element:
    """Return the weighted mean of the metrics that have a value, or the default."""
    values = [(metric, json.field(t.examples.c.metrics, name)) for name, metric in rule.metrics.items()]
    if not values:
        return sa.literal(rule.default, sa.Double)
    earned = [
        sa.func.coalesce(metric.weight * metric.scale(cast(Any, value), SQL), 0.0) for metric, value in values
    ]
    weights = [sa.case((value.is_not(None), metric.weight), else_=0.0) for metric, value in values]
    weight = SQL.total(weights)
    return sa.case((weight > 0.0, SQL.total(earned) / weight), else_=rule.default)


def _usd_today(rule: RewardRule, paid: Element, tokens: Element, json: "_Json") -> Element:
    """Return what `armwise.feedback.reward.usd_today` does."""
    model = sa.func.json_each(tokens).table_valued("key", "value").alias("model")
    read, written, cached, searched, kept = (json.at(model.c.value, place) for place in range(5))
    usd = []
    for name, (per_read, per_written, per_cached, *own) in rule.token_prices.items():
        total = (read - cached) * per_read + cached * per_cached + written * per_written
        for price in own:
            total += sa.func.coalesce(kept, 0.0) * (price - per_read)
        usd.append((model.c.key == name, total / 1000.0 + sa.func.coalesce(searched, 0.0)))
    today = sa.case(*usd)
    total = sa.func.coalesce(sa.func.sum(today), paid)
    is_whole = sa.func.count(today) == sa.func.count()
    return sa.select(sa.case((is_whole, total), else_=paid)).scalar_subquery()


class _Json:
    """Reads JSON in the SQL of a database.

    Args:
        is_sqlite: Whether it is SQLite; else PostgreSQL.
    """

    def __init__(self, *, is_sqlite: bool) -> None:
        self._is_sqlite = is_sqlite

    def at(self, document: Element, *path: str | int) -> Element:
        """Return the number at a path of our own names; NULL if there is none."""
        if self._is_sqlite:
            return sa.func.json_extract(document, _path(path), type_=sa.Double)
        return sa.cast(document.op("#>>")(sa.literal(_array(path), sa.String)), sa.Double)

    def field(self, document: Element, name: str) -> Element:
        """Return the number of a field with any name; NULL if there is none."""
        if self._is_sqlite:
            one = sa.func.json_each(document).table_valued(sa.column("key"), sa.column("value", sa.Double))
            return sa.select(one.c.value).where(one.c.key == name).scalar_subquery()
        return sa.cast(document.op("->>")(sa.literal(name, sa.String)), sa.Double)

    def objects(self, document: Element, *path: str) -> Element:
        """Return the object at a path; NULL if there is none."""
        if self._is_sqlite:
            return sa.func.nullif(sa.func.json_extract(document, _path(path)), sa.literal("null", sa.String))
        text = sa.cast(document.op("#>")(sa.literal(_array(path), sa.String)), sa.Text)
        return sa.cast(sa.func.nullif(text, sa.literal("null", sa.String)), sa.JSON)


def _path(path: tuple[str | int, ...]) -> Element:
    return sa.literal("$" + "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path), sa.String)


def _array(path: tuple[str | int, ...]) -> str:
    return "{" + ",".join(map(str, path)) + "}"
