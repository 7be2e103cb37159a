"""Schema 18: a decision of another system may stand without a propensity that is known."""

import sqlalchemy as sa
from alembic import op

revision = "18"

down_revision = "17"


def upgrade() -> None:
    """Let the propensity of a decision be null; SQLite has to copy the table for it."""
    with op.batch_alter_table("decisions") as batch:
        batch.alter_column("propensity", existing_type=sa.Double, nullable=True)
