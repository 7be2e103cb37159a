"""Schema 20: sums of rewards of settled decisions alone.

What was added up before has rewards of decisions that could still get feedback, so it is dropped: the learner
adds the log up again, from its first fact.
"""

import sqlalchemy as sa
from alembic import op

revision = "20"

down_revision = "19"


def upgrade() -> None:
    """Empty the sums, keep with them up to which decision rewards are counted, and where a join was idle."""
    position = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.add_column("progress", sa.Column("idle_seq", position, server_default="0", nullable=False))
    op.execute(sa.text("DELETE FROM rollups"))
    op.execute(sa.text("DELETE FROM rollup_positions"))
    rewarded = sa.Column("rewarded_seq", sa.BigInteger, server_default="0", nullable=False)
    op.add_column("rollup_positions", rewarded)
