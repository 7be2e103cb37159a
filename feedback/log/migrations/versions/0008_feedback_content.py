"""Schema 10: what feedback says besides numbers, and the labels of categorical metrics."""

from alembic import op
from sqlalchemy import JSON, Column

revision = "10"

down_revision = "9"


def upgrade() -> None:
    """Add the columns; feedback before this has only numbers."""
    op.add_column("feedback", Column("content", JSON))
    op.add_column("metrics", Column("labels", JSON))
