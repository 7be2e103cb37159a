"""The tables of callers.

keys, disabled_keys   keys, of the secret a hash; those that were disabled
usage, leases         what each key used; what replicas have reserved of its limits
"""

from sqlalchemy import JSON, BigInteger, Column, Double, Integer, String, Table

from feedback.log.tables import metadata

keys = Table(
    "keys",
    metadata,
    Column("seq", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("public_id", String(128), nullable=False, unique=True),
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
    Column("groups", JSON),  # null in keys of older schemas
    sqlite_autoincrement=True,
)

disabled_keys = Table(
    "disabled_keys",
    metadata,
    Column("seq", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("public_id", String(128), nullable=False, unique=True),
    Column("at", Double, nullable=False),
    sqlite_autoincrement=True,
)

usage = Table(
    "usage",
    metadata,
    Column("key", String(128), primary_key=True),
    Column("period", String(16), primary_key=True),
    Column("requests", BigInteger, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    Column("usd", Double, nullable=False),
)

leases = Table(
    "leases",
    metadata,
    Column("key", String(128), primary_key=True),
    Column("period", String(16), primary_key=True),
    Column("holder", String(64), primary_key=True),
    Column("requests", BigInteger, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    Column("usd", Double, nullable=False),
    Column("until", Double, nullable=False),
)
