"""Schema 5: the secret of draws, the prices of a budget, and the cost weight of a request."""

import secrets

import sqlalchemy as sa
from alembic import op

revision = "5"

down_revision = "4"

_SEQ = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Make a secret for the draws from here on, and add the columns of decisions."""
    draw_secret = op.create_table(
        "draw_secret",
        sa.Column("id", sa.Integer, autoincrement=False),
        sa.Column("secret", sa.String(64), nullable=False),
        sa.Column("after", _SEQ, nullable=False),
        sa.PrimaryKeyConstraint("id", name="draw_secret_key"),
    )
    after = op.get_bind().scalar(sa.text("SELECT seq FROM log_head")) or 0
    op.bulk_insert(draw_secret, [{"id": 1, "secret": secrets.token_hex(32), "after": after}])
    op.create_table(
        "prices",
        sa.Column("seq", _SEQ, autoincrement=True),
        sa.Column("budget", sa.String(64), nullable=False),
        sa.Column("log_seq", _SEQ, nullable=False),
        sa.Column("price", sa.Double, nullable=False),
        sa.Column("debt", sa.Double, nullable=False),
        sa.Column("arms", sa.JSON, nullable=False),
        sa.Column("epoch", _SEQ, sa.ForeignKey("epochs.epoch", name="prices_of_epochs"), nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("seq", name="prices_key"),
        sqlite_autoincrement=True,
    )
    op.add_column("decisions", sa.Column("price", sa.Double, nullable=False, server_default="0"))
    op.add_column("decisions", sa.Column("costs", sa.JSON))
    op.add_column("decisions", sa.Column("cost_weight", sa.Double))
