"""Schema 1: decisions and feedback in orders of their own, and one training log."""

from alembic import op
from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)

revision = "1"

down_revision = None

metadata = MetaData()

_SEQ = BigInteger().with_variant(Integer, "sqlite")  # SQLite numbers rows only in an INTEGER key

decisions = Table(
    "decisions",
    metadata,
    Column("seq", _SEQ, primary_key=True, autoincrement=True),
    Column("id", String(128), nullable=False, unique=True),
    Column("decided_at", Double, nullable=False),
    Column("deadline", Double, nullable=False),
    Column("mode", String(16), nullable=False),
    Column("policy", String(64), nullable=False),
    Column("version", _SEQ, nullable=False),
    Column("drawn", String(128), nullable=False),
    Column("propensity", Double, nullable=False),
    Column("episode_id", String(128)),
    Column("request_digest", String(64), nullable=False),
    Column("question", Text, nullable=False),
    Column("arms", JSON, nullable=False),
    Column("probabilities", JSON, nullable=False),
    Column("features", JSON, nullable=False),
    Index("decisions_by_deadline", "deadline"),
    sqlite_autoincrement=True,
)

executions = Table(
    "executions",
    metadata,
    Column("decision_id", String(128), primary_key=True),
    Column("served", String(128)),
    Column("status", String(16), nullable=False),
    Column("steps", Integer, nullable=False),
    Column("prompt_tokens", Integer, nullable=False),
    Column("completion_tokens", Integer, nullable=False),
    Column("retrieval_s", Double, nullable=False),
    Column("llm_s", Double, nullable=False),
    Column("usd", Double, nullable=False),
    Column("passages", JSON, nullable=False),
    Column("answer", Text),
    Column("error", Text, nullable=False),
    Column("finished_at", Double, nullable=False),
)

feedback = Table(
    "feedback",
    metadata,
    Column("seq", _SEQ, primary_key=True, autoincrement=True),
    Column("id", String(256), nullable=False, unique=True),
    Column("decision_id", String(128), nullable=False, index=True),
    Column("metric", String(128), nullable=False),
    Column("value", Double, nullable=False),
    Column("received_at", Double, nullable=False),
    Column("event_time", Double),
    Column("tags", JSON, nullable=False),
    sqlite_autoincrement=True,
)

examples = Table(
    "examples",
    metadata,
    Column("seq", _SEQ, primary_key=True, autoincrement=False),
    Column("decision_id", String(128), nullable=False, unique=True),
    Column("metrics", JSON, nullable=False),
    Column("joined_at", Double, nullable=False),
)

progress = Table(
    "progress",
    metadata,
    Column("reader", String(32), primary_key=True),
    Column("feedback_seq", _SEQ, nullable=False),
    Column("deadline", Double, nullable=False),
)

epochs = Table(
    "epochs",
    metadata,
    Column("epoch", _SEQ, primary_key=True, autoincrement=True),
    Column("holder", String(256), nullable=False),
    Column("taken_at", Double, nullable=False),
    sqlite_autoincrement=True,
)

versions = Table(
    "versions",
    metadata,
    Column("version", _SEQ, primary_key=True, autoincrement=True),
    Column("parent", _SEQ),
    Column("recipe", String(64), nullable=False),
    Column("policy", JSON, nullable=False),
    Column("examples_seq", _SEQ, nullable=False),
    Column("applied_seq", _SEQ, nullable=False),
    Column("digest", String(64), nullable=False),
    Column("epoch", _SEQ, ForeignKey("epochs.epoch"), nullable=False),
    Column("created_at", Double, nullable=False),
    Index("versions_by_recipe", "recipe", "version"),
    sqlite_autoincrement=True,
)

switches = Table(
    "switches",
    metadata,
    Column("seq", _SEQ, primary_key=True, autoincrement=True),
    Column("arm", String(128), nullable=False),
    Column("enabled", Boolean, nullable=False),
    Column("at", Double, nullable=False),
    sqlite_autoincrement=True,
)

arm_sets = Table(
    "arm_sets",
    metadata,
    Column("seq", _SEQ, primary_key=True, autoincrement=True),
    Column("arms", JSON, nullable=False),
    Column("configured", String(64), nullable=False),
    Column("at", Double, nullable=False),
    sqlite_autoincrement=True,
)

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("version", _SEQ, ForeignKey("versions.version"), primary_key=True),
    Column("state", LargeBinary, nullable=False),
)


def upgrade() -> None:
    """Make the tables."""
    metadata.create_all(op.get_bind())
