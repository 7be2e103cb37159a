"""Schema 17: sums of the log by position, beside those by minute and hour; who decided a promotion.

Sums count explored decisions, and have that of the weights times the squared rewards. What was added up
before lacks both, so it is dropped: the learner adds the log up again, from its first fact.
"""

import sqlalchemy as sa
from alembic import op

revision = "17"

down_revision = "16"


def upgrade() -> None:
    """Replace the table by one with the new columns, which a learner fills again; add one to promotions."""
    automatic = sa.Column("automatic", sa.Boolean, server_default=sa.false(), nullable=False)
    op.add_column("promotions", automatic)
    _end_replaced_canaries()
    op.execute(sa.text("DELETE FROM rollup_positions"))
    op.drop_table("rollups")
    op.create_table(
        "rollups",
        sa.Column("width", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("start", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("arm", sa.String(128), nullable=False),
        sa.Column("n_arms", sa.Integer, autoincrement=False, nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in _COUNTS),
        *(sa.Column(name, sa.Double, nullable=False) for name in _SUMS),
        sa.PrimaryKeyConstraint("width", "start", "arm", "n_arms", name="rollups_key"),
    )


def _end_replaced_canaries() -> None:
    """Record the end of canaries that a newer one replaced: from now on there may be several."""
    connection = op.get_bind()
    canaries = sa.text(
        "SELECT version, configured, at, share FROM promotions WHERE action = 'canary' ORDER BY seq"
    )
    newest, by_version = {}, {}
    for row in connection.execute(canaries):
        newest[row.configured] = row
        by_version[row.configured, row.version] = row
    end = sa.text(
        "INSERT INTO promotions (version, action, reason, at, configured, forced, share, automatic) "
        "VALUES (:version, 'canary', 'replaced by another canary', :at, :configured, :no, 0, :no)"
    ).bindparams(sa.bindparam("no", False, sa.Boolean))
    for (configured, version), row in by_version.items():
        last = newest[configured]
        if row.share and version != last.version:
            values = {"version": version, "at": last.at, "configured": configured, "no": False}
            connection.execute(end, values)


_COUNTS = (
    *("decisions", "finished", "fell_back", "failed", "cancelled", "answers"),
    *("steps", "tokens", "rewarded", "explored"),
)

_SUMS = (
    *("retrieval_s", "llm_s", "usd", "reward", "reward2"),
    *("w", "wr", "w2", "w2r", "w2r2", "wr2"),
)
