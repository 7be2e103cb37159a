"""Schema 7: recipes with a router and with arms, and the scores of routers."""

import sqlalchemy as sa
from alembic import op

revision = "7"

down_revision = "6"

_SEQ = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Create the tables of routers, and add what versions, promotions, arm sets and decisions say of them."""
    op.create_table(
        "routers",
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("about", sa.JSON, nullable=False),
        sa.Column("model", sa.LargeBinary, nullable=False),
        sa.Column("unseen", sa.LargeBinary, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("digest", name="routers_key"),
    )
    op.create_table(
        "router_scores",
        sa.Column("router", sa.String(64), nullable=False),
        sa.Column("decision_id", sa.String(128), nullable=False),
        sa.Column("scores", sa.JSON),
        sa.PrimaryKeyConstraint("router", "decision_id", name="router_scores_key"),
    )
    op.add_column("versions", sa.Column("router", sa.String(64)))
    op.add_column("versions", sa.Column("arms", sa.JSON))
    op.add_column("promotions", sa.Column("arm_set", _SEQ))
    op.add_column("arm_sets", sa.Column("version", _SEQ))
    op.add_column("decisions", sa.Column("candidate_scores", sa.JSON))
