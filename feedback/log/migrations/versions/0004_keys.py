"""Schema 6: keys as rows, what they used and what is reserved for them, and from whom feedback is."""

from alembic import op
from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Double,
    Integer,
    PrimaryKeyConstraint,
    String,
    UniqueConstraint,
)

revision = "6"

down_revision = "5"

_SEQ = BigInteger().with_variant(Integer, "sqlite")


def upgrade() -> None:
    """Create the tables of keys, and add the source and the key to feedback."""
    for name, length in (("source", 16), ("key", 128)):
        op.add_column("feedback", Column(name, String(length)))
    op.create_table(
        "keys",
        Column("seq", _SEQ, autoincrement=True, nullable=False),
        Column("public_id", String(128), nullable=False),
        Column("secret_hash", String(64), nullable=False),
        Column("name", String(128), nullable=False),
        Column("scopes", JSON, nullable=False),
        Column("project", String(32), nullable=False),
        Column("source", String(16), nullable=False),
        Column("rpm_limit", BigInteger),
        Column("tpm_limit", BigInteger),
        Column("max_budget", Double),
        Column("token_budget", BigInteger),
        Column("budget_duration", String(8)),
        Column("expires", Double),
        Column("tags", JSON, nullable=False),
        Column("created_at", Double, nullable=False),
        PrimaryKeyConstraint("seq", name="keys_key"),
        UniqueConstraint("public_id", name="one_keys_by_public_id"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "disabled_keys",
        Column("seq", _SEQ, autoincrement=True, nullable=False),
        Column("public_id", String(128), nullable=False),
        Column("at", Double, nullable=False),
        PrimaryKeyConstraint("seq", name="disabled_keys_key"),
        UniqueConstraint("public_id", name="one_disabled_keys_by_public_id"),
        sqlite_autoincrement=True,
    )
    amounts = ("requests", BigInteger), ("tokens", BigInteger), ("usd", Double)
    op.create_table(
        "usage",
        Column("key", String(128), nullable=False),
        Column("period", String(16), nullable=False),
        *(Column(name, kind, nullable=False) for name, kind in amounts),
        PrimaryKeyConstraint("key", "period", name="usage_key"),
    )
    op.create_table(
        "leases",
        Column("key", String(128), nullable=False),
        Column("period", String(16), nullable=False),
        Column("holder", String(64), nullable=False),
        *(Column(name, kind, nullable=False) for name, kind in amounts),
        Column("until", Double, nullable=False),
        PrimaryKeyConstraint("key", "period", "holder", name="leases_key"),
    )
