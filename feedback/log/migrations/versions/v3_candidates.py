"""Schema 3: candidates beside what is served, evaluations, and runs of the warm start.

What was said of a version earlier was said under the configuration of its own recipe.
"""

from typing import Any

from alembic import op
from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    false,
)

revision = "3"

down_revision = "2"

metadata = MetaData(
    naming_convention={"ix": "%(table_name)s_by_%(column_0_N_name)s", "pk": "%(table_name)s_key"}
)

_SEQ = BigInteger().with_variant(Integer, "sqlite")  # SQLite numbers rows only in an INTEGER key

Table(
    "evaluations",
    metadata,
    Column("seq", _SEQ, primary_key=True, autoincrement=True),
    Column("configured", String(64), nullable=False),
    Column("request", JSON, nullable=False),
    Column("status", String(16), nullable=False, index=True),
    Column("submitted_at", Double, nullable=False),
    Column("started_at", Double),
    Column("alive_at", Double),
    Column("finished_at", Double),
    Column("worker", String(256)),
    Column("done", Double, nullable=False),
    Column("result", JSON),
    Column("html", LargeBinary),
    Column("error", Text),
    sqlite_autoincrement=True,
)

Table(
    "runs",
    metadata,
    Column("seq", _SEQ, primary_key=True, autoincrement=True),
    Column("configured", String(64), nullable=False),
    Column("trigger", String(32), nullable=False),
    Column("status", String(16), nullable=False, index=True),
    Column("worker", String(256), nullable=False),
    Column("started_at", Double, nullable=False),
    Column("alive_at", Double, nullable=False),
    Column("finished_at", Double),
    Column("inputs", JSON, nullable=False),
    Column("steps", JSON, nullable=False),
    Column("candidate", _SEQ),
    Column("evaluation", _SEQ),
    Column("error", Text),
    sqlite_autoincrement=True,
)


def _added() -> dict[str, tuple[Column[Any], ...]]:
    return {
        "decisions": (
            Column("candidate", _SEQ, nullable=False, server_default="0"),
            Column("share", Double, nullable=False, server_default="0"),
        ),
        "versions": (Column("start", JSON),),
        "promotions": (
            Column("configured", String(64)),
            Column("forced", Boolean, nullable=False, server_default=false()),
            Column("share", Double, nullable=False, server_default="0"),
            Column("evaluation", _SEQ),
        ),
    }


def upgrade() -> None:
    """Add the columns, fill in under which configuration something was said, make the new tables."""
    for table, columns in _added().items():
        for column in columns:
            op.add_column(table, column)
    op.execute(
        "UPDATE promotions SET configured = "
        "(SELECT recipe FROM versions WHERE versions.version = promotions.version)"
    )
    metadata.create_all(op.get_bind())
