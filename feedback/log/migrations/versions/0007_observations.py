"""Schema 9: what was found out beside the reward: second answers, grades of a judge."""

from alembic import op
from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    Integer,
    PrimaryKeyConstraint,
    String,
    Text,
    UniqueConstraint,
)

revision = "9"

down_revision = "8"

_SEQ = BigInteger().with_variant(Integer, "sqlite")


def upgrade() -> None:
    """Create the table of observations."""
    op.create_table(
        "observations",
        Column("seq", _SEQ, autoincrement=False, nullable=False),
        Column("decision_id", String(128), nullable=False),
        Column("source", String(16), nullable=False),
        Column("arm", String(128), nullable=False),
        Column("share", Double, nullable=False),
        Column("propensity", Double, nullable=False),
        Column("value", Double),
        *(Column(name, Integer, nullable=False) for name in ("steps", "prompt_tokens", "completion_tokens")),
        *(Column(name, Double, nullable=False) for name in ("retrieval_s", "llm_s", "usd")),
        Column("judge", String(256), nullable=False),
        Column("judge_tokens", Integer, nullable=False),
        Column("judge_s", Double, nullable=False),
        Column("judge_usd", Double, nullable=False),
        Column("swapped", Boolean, nullable=False),
        Column("passages", JSON, nullable=False),
        Column("answer", Text),
        Column("error", Text, nullable=False),
        Column("observed_at", Double, nullable=False),
        PrimaryKeyConstraint("seq", name="observations_key"),
        UniqueConstraint("decision_id", "source", "arm", name="one_observations_by_decision_id_source_arm"),
    )
