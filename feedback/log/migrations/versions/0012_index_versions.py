"""Schema 14: the version of the index that answered, whether the cache did, and the tokens of each model."""

import sqlalchemy as sa
from alembic import op

revision = "14"

down_revision = "13"


def upgrade() -> None:
    """Add the columns to executions; of those before, no cache answered and the rest is unknown."""
    op.add_column("executions", sa.Column("index_version", sa.Text))
    op.add_column("executions", sa.Column("cached", sa.Boolean, nullable=False, server_default=sa.false()))
    op.add_column("executions", sa.Column("tokens_by_model", sa.JSON))
