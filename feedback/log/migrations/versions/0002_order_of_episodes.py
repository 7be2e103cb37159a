"""Schema 4: the decisions of an episode are found in the order of the log."""

from alembic import op

revision = "4"

down_revision = "3"


def upgrade() -> None:
    """Replace the index of decisions by episode."""
    op.create_index("decisions_by_episode_id_seq", "decisions", ["episode_id", "seq"])
    op.drop_index("decisions_by_episode_id", "decisions")
