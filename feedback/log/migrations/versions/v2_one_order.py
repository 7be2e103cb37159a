"""Schema 2: all facts in one order without gaps, a training log for each way of joining.

Earlier, decisions and feedback were numbered apart from each other, and executions not at all. They are put
into one order by their time stamps, in which they would have been written; an execution whose clock says
otherwise still follows its decision. Feedback on one decision that follows upon itself within a millisecond
was sent together: every item had a stamp of its own. The training log is left out, since it is made from the
facts. What was not recorded is left empty: the floor that was mixed in, and the way in which the examples
of a version were joined.

More than 300 lines, since it has the tables as they are at this schema.
"""

from alembic import op
from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

revision = "2"

down_revision = "1"

metadata = MetaData(
    naming_convention={
        "ix": "%(table_name)s_by_%(column_0_N_name)s",
        "uq": "one_%(table_name)s_by_%(column_0_N_name)s",
        "fk": "%(table_name)s_of_%(referred_table_name)s",
        "pk": "%(table_name)s_key",
    }
)

_SEQ = BigInteger().with_variant(Integer, "sqlite")  # SQLite numbers rows only in an INTEGER key


def _position() -> Column[int]:
    """The position of a fact, which is given out by `log_head`."""
    return Column("seq", _SEQ, primary_key=True, autoincrement=False)


def _number(name: str = "seq") -> Column[int]:
    """A number that the database gives out."""
    return Column(name, _SEQ, primary_key=True, autoincrement=True)


log_head = Table(
    "log_head",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("seq", _SEQ, nullable=False),
    Column("at", Double, nullable=False),
)

decisions = Table(
    "decisions",
    metadata,
    _position(),
    Column("id", String(128), nullable=False, unique=True),
    Column("decided_at", Double, nullable=False),
    Column("deadline", Double, nullable=False),
    Column("logged_at", Double, nullable=False, index=True),
    Column("mode", String(16), nullable=False),
    Column("policy", String(64), nullable=False),
    Column("version", _SEQ, nullable=False),
    Column("floor", Double),
    Column("drawn", String(128), nullable=False),
    Column("propensity", Double, nullable=False),
    Column("deferred", Boolean, nullable=False),
    Column("episode_id", String(128), index=True),
    Column("request_digest", String(64), nullable=False),
    Column("question", Text, nullable=False),
    Column("arms", JSON, nullable=False),
    Column("probabilities", JSON, nullable=False),
    Column("shadow", JSON, nullable=False),
    Column("features", JSON, nullable=False),
)

executions = Table(
    "executions",
    metadata,
    _position(),
    Column("decision_id", String(128), nullable=False, unique=True),
    Column("served", String(128)),
    Column("status", String(16), nullable=False),
    Column("steps", Integer, nullable=False),
    Column("prompt_tokens", Integer, nullable=False),
    Column("completion_tokens", Integer, nullable=False),
    Column("retrieval_s", Double, nullable=False),
    Column("llm_s", Double, nullable=False),
    Column("usd", Double, nullable=False),
    Column("passages", JSON, nullable=False),
    Column("answer", Text),
    Column("error", Text, nullable=False),
    Column("finished_at", Double, nullable=False),
)

feedback = Table(
    "feedback",
    metadata,
    _position(),
    Column("id", String(256), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("decision_id", String(128), index=True),
    Column("episode_id", String(128), index=True),
    Column("early", Boolean, nullable=False),
    Column("more", Boolean, nullable=False),
    Column("metric", String(128), nullable=False),
    Column("value", Double),
    Column("received_at", Double, nullable=False),
    Column("event_time", Double),
    Column("tags", JSON, nullable=False),
    UniqueConstraint("id", "kind"),
)

Index(
    "feedback_that_was_early",
    feedback.c.decision_id,
    sqlite_where=text("early"),
    postgresql_where=text("early"),
)

ticks = Table("ticks", metadata, _position(), Column("at", Double, nullable=False))

examples = Table(
    "examples",
    metadata,
    Column("join", String(64), primary_key=True),
    Column("seq", _SEQ, primary_key=True, autoincrement=False),
    Column("decision_id", String(128), nullable=False),
    Column("metrics", JSON, nullable=False),
    Column("joined_by", _SEQ, nullable=False),
    UniqueConstraint("decision_id", "join"),
)

progress = Table(
    "progress",
    metadata,
    Column("join", String(64), primary_key=True),
    Column("log_seq", _SEQ, nullable=False),
    Column("log_at", Double, nullable=False),
    Column("examples_seq", _SEQ, nullable=False),
)

epochs = Table(
    "epochs",
    metadata,
    _number("epoch"),
    Column("holder", String(256), nullable=False),
    Column("taken_at", Double, nullable=False),
    sqlite_autoincrement=True,
)

versions = Table(
    "versions",
    metadata,
    _number("version"),
    Column("parent", _SEQ),
    Column("recipe", String(64), nullable=False),
    Column("join", String(64), nullable=False),
    Column("policy", JSON, nullable=False),
    Column("examples_seq", _SEQ, nullable=False),
    Column("applied_seq", _SEQ, nullable=False),
    Column("digest", String(64), nullable=False),
    Column("epoch", _SEQ, ForeignKey("epochs.epoch"), nullable=False),
    Column("created_at", Double, nullable=False),
    Index("versions_by_recipe", "recipe", "version"),
    sqlite_autoincrement=True,
)

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("version", _SEQ, ForeignKey("versions.version"), primary_key=True, autoincrement=False),
    Column("state", LargeBinary, nullable=False),
)

promotions = Table(
    "promotions",
    metadata,
    _number(),
    Column("version", _SEQ, ForeignKey("versions.version"), nullable=False),
    Column("action", String(16), nullable=False),
    Column("reason", Text, nullable=False),
    Column("at", Double, nullable=False),
    sqlite_autoincrement=True,
)

metrics = Table(
    "metrics",
    metadata,
    _number(),
    Column("name", String(128), nullable=False),
    Column("type", String(16), nullable=False),
    Column("low", Double, nullable=False),
    Column("high", Double, nullable=False),
    Column("at", Double, nullable=False),
    sqlite_autoincrement=True,
)

switches = Table(
    "switches",
    metadata,
    _number(),
    Column("arm", String(128), nullable=False),
    Column("enabled", Boolean, nullable=False),
    Column("at", Double, nullable=False),
    sqlite_autoincrement=True,
)

arm_sets = Table(
    "arm_sets",
    metadata,
    _number(),
    Column("arms", JSON, nullable=False),
    Column("configured", String(64), nullable=False),
    Column("at", Double, nullable=False),
    sqlite_autoincrement=True,
)

alarms = Table(
    "alarms",
    metadata,
    _number(),
    Column("recipe", String(64), nullable=False),
    Column("subject", String(256), nullable=False),
    Column("detector", String(32), nullable=False),
    Column("before", Double, nullable=False),
    Column("after", Double, nullable=False),
    Column("example_seq", _SEQ, nullable=False),
    Column("at", Double, nullable=False),
    UniqueConstraint("recipe", "subject", "example_seq"),
    sqlite_autoincrement=True,
)

warm_starts = Table(
    "warm_starts",
    metadata,
    _number(),
    Column("labels", Integer, nullable=False),
    Column("at", Double, nullable=False),
    sqlite_autoincrement=True,
)

_MOVED = ("epochs", "versions", "checkpoints", "switches", "arm_sets", "decisions", "executions", "feedback")
"""The tables whose rows are kept; one that another refers to stands before it."""

_ORDER = """
CREATE TEMPORARY TABLE positions AS
SELECT kind, id, at, row_number() OVER (ORDER BY at, kind, earlier, id) AS seq
FROM (
    SELECT 0 AS kind, id, decided_at AS at, seq AS earlier FROM decisions_1
    UNION ALL
    SELECT 1, e.decision_id,
        CASE WHEN d.decided_at > e.finished_at THEN d.decided_at ELSE e.finished_at END, coalesce(d.seq, 0)
    FROM executions_1 AS e LEFT JOIN decisions_1 AS d ON d.id = e.decision_id
    UNION ALL
    SELECT 2, id, received_at, seq FROM feedback_1
) AS facts
"""

_ROWS = (
    """
    INSERT INTO log_head (id, seq, at) SELECT 1, count(*), coalesce(max(at), 0.0) FROM positions
    """,
    # in the order of the stamps, the latest time up to a decision is its own
    """
    INSERT INTO decisions (seq, id, decided_at, deadline, logged_at, mode, policy, version, floor, drawn,
        propensity, deferred, episode_id, request_digest, question, arms, probabilities, shadow, features)
    SELECT p.seq, d.id, decided_at, deadline, decided_at, mode, policy, version, NULL, drawn,
        propensity, false, episode_id, request_digest, question, arms, probabilities, '[]', features
    FROM positions AS p JOIN decisions_1 AS d ON d.id = p.id WHERE p.kind = 0 ORDER BY p.seq
    """,
    """
    INSERT INTO executions (seq, decision_id, served, status, steps, prompt_tokens, completion_tokens,
        retrieval_s, llm_s, usd, passages, answer, error, finished_at)
    SELECT p.seq, decision_id, served, status, steps, prompt_tokens, completion_tokens,
        retrieval_s, llm_s, usd, passages, answer, error, finished_at
    FROM positions AS p JOIN executions_1 AS e ON e.decision_id = p.id WHERE p.kind = 1 ORDER BY p.seq
    """,
    """
    INSERT INTO feedback (seq, id, kind, decision_id, episode_id, early, more, metric, value, received_at,
        event_time, tags)
    SELECT p.seq, f.id, 'value', decision_id, NULL, d.seq IS NULL OR d.seq > p.seq,
        coalesce(lead(p.seq) OVER log = p.seq + 1 AND lead(decision_id) OVER log = decision_id
            AND lead(received_at) OVER log <= received_at + 0.001, false),
        metric, value, received_at, event_time, tags
    FROM positions AS p JOIN feedback_1 AS f ON f.id = p.id
        LEFT JOIN positions AS d ON d.kind = 0 AND d.id = f.decision_id
    WHERE p.kind = 2 WINDOW log AS (ORDER BY p.seq) ORDER BY p.seq
    """,
    "INSERT INTO epochs (epoch, holder, taken_at) SELECT epoch, holder, taken_at FROM epochs_1",
    """
    INSERT INTO versions (version, parent, recipe, "join", policy, examples_seq, applied_seq, digest, epoch,
        created_at)
    SELECT version, parent, recipe, '', policy, examples_seq, applied_seq, digest, epoch, created_at
    FROM versions_1
    """,
    "INSERT INTO checkpoints (version, state) SELECT version, state FROM checkpoints_1",
    "INSERT INTO switches (seq, arm, enabled, at) SELECT seq, arm, enabled, at FROM switches_1",
    "INSERT INTO arm_sets (seq, arms, configured, at) SELECT seq, arms, configured, at FROM arm_sets_1",
)

_NUMBERED = {"epochs": "epoch", "versions": "version", "switches": "seq", "arm_sets": "seq"}
"""Tables whose next number PostgreSQL must be told, and the column that has it; SQLite looks."""


def upgrade() -> None:
    """Make the tables beside the earlier ones, let the database move the rows, drop the earlier ones."""
    op.drop_table("examples")
    op.drop_table("progress")
    op.drop_index("versions_by_recipe", table_name="versions")  # a name that the new one needs
    for name in _MOVED:
        op.rename_table(name, f"{name}_1")
    metadata.create_all(op.get_bind())
    op.execute(_ORDER)
    op.create_index("positions_by_id", "positions", ["kind", "id"])
    op.execute("ANALYZE positions")  # else both databases take it for a small table
    for rows in _ROWS:
        op.execute(rows)
    op.drop_table("positions")
    for name in reversed(_MOVED):
        op.drop_table(f"{name}_1")
    if op.get_context().dialect.name == "postgresql":
        for name, column in _NUMBERED.items():
            newest = f"(SELECT max({column}) FROM {name})"
            op.execute(f"SELECT setval(pg_get_serial_sequence('{name}', '{column}'), {newest})")
