"""Schema 11: sums of the log by time and arm, from which pages are drawn; a learner fills them."""

from alembic import op
from sqlalchemy import BigInteger, Column, Double, Integer, PrimaryKeyConstraint, String

revision = "11"

down_revision = "10"


def upgrade() -> None:
    """Create the tables of sums."""
    counts = ("decisions", "finished", "fell_back", "failed", "cancelled", "answers", "steps", "tokens")
    sums = ("retrieval_s", "llm_s", "usd", "reward", "reward2", "w", "wr", "w2", "w2r", "w2r2")
    op.create_table(
        "rollups",
        Column("width", Integer, autoincrement=False, nullable=False),
        Column("start", BigInteger, autoincrement=False, nullable=False),
        Column("arm", String(128), nullable=False),
        Column("n_arms", Integer, autoincrement=False, nullable=False),
        *(Column(name, BigInteger, nullable=False) for name in (*counts, "rewarded")),
        *(Column(name, Double, nullable=False) for name in sums),
        PrimaryKeyConstraint("width", "start", "arm", "n_arms", name="rollups_key"),
    )
    op.create_table(
        "rollup_positions",
        Column("rule", String(64), nullable=False),
        Column("log_seq", BigInteger, nullable=False),
        Column("examples_seq", BigInteger, nullable=False),
        PrimaryKeyConstraint("rule", name="rollup_positions_key"),
    )
