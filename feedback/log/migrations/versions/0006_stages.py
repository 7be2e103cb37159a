"""Schema 8: the stages of an arm that has some."""

from alembic import op
from sqlalchemy import JSON, Column

revision = "8"

down_revision = "7"


def upgrade() -> None:
    """Add the stages to executions; of those before, none are known."""
    op.add_column("executions", Column("stages", JSON))
