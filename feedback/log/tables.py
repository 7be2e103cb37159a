"""The tables of the log: facts in one order, training logs, and the registry.

Facts. Every row has a position in the one order of the log, `seq`, from 1 and without gaps:

decisions    draws, each committed before its answer is sent
executions   outcomes: at most one row a decision
feedback     values, retractions of values, and activations: the answer was shown
observations second answers and grades of a judge, apart from the reward
texts        what people wrote and read, and the salt of its seal: at most one row a fact, which an erasure
             removes
answer_marks index of the marks of executions, by caller and digest: which answer a request continues
ticks        the time, written while the log is quiet: closes decisions that wait for feedback
log          one row: number of the tables, last position and latest time of the facts, and the secret that
             makes draws unpredictable. Every transaction that appends locks it

Derived from the facts alone:
examples     training logs: for each join, each decision once, in order, with its rater, and the raters of
             those that were left out before it, since their share was used up
progress     how far each join has read, by its digest, with the chain of the facts there
             (`armwise.feedback.log.chain`)
summary      one row: what the pages of the console show
rewards      a view: what each learned decision earned, by `armwise.feedback.training_log.rewards_view`
The registry; each table has its own numbers:
operations   what operators and the service decided, by `armwise.feedback.log.operations`: metrics, live arms,
             promotions, prices, alarms, erasures, which learner may write, and more
versions     policy states at positions of a training log, and the chain of the facts that were joined; the
             bytes of some, a cache: a replay of `examples` gives the others
routers, router_scores          trained routers; their scores of decisions that were made without them
jobs         off-policy evaluations, and warm starts with digests of all inputs
keys         API keys, with a hash of the secret
usage        usage of each key
"""

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

from armwise.feedback.events import LEAST_PROPENSITY

SCHEMA = 2
"""Number of these tables, in `log`. Count it up when one of them changes after the first release."""

NO_FACTS = 64 * "0"
"""The chain of a log without facts."""

SALT_CHARS, SEAL_CHARS = 24, 40
"""Lengths of a salt and of a seal, in hexadecimal digits."""

# Callers' numbers are refused at the door: by the API, an import or a verb. What an arm, a model or a clock
# reports beyond these limits, such as 10^30 tokens, is written as the nearest limit, with a warning.

LARGEST = 2**53
"""Largest number in a document or a value: the largest integer that every JSON parser reads exactly."""

MOST_TOKENS = 2**31 - 1
"""Largest number of tokens or steps of an answer."""

MOST_SPENT = 1e9
"""Most dollars or seconds of an answer."""

LATEST = 4_102_444_800.0
"""Latest time of a fact: the first of January 2100."""

# Named, so that a later schema finds them on both databases.
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
    """The position of a fact, assigned under the lock of `log`."""
    return Column("seq", _SEQ, primary_key=True, autoincrement=False)


def _seal() -> Column[str]:
    """The seal of a fact, by `armwise.feedback.log.chain`; NULL: it has nothing that an erasure removes."""
    return Column("seal", String(SEAL_CHARS))


def _amount(
    name: str, low: float = 0.0, high: float = MOST_SPENT, *, nullable: bool = False
) -> Column[float]:
    """A number that `append` keeps within limits: dollars, seconds, a share or a value."""
    return Column(name, Double, nullable=nullable, info={"limits": (low, high)})


def _count(name: str) -> Column[int]:
    """A whole number of tokens or steps."""
    return Column(name, Integer, nullable=False, info={"limits": (0, MOST_TOKENS)})


def _time(name: str, *, index: bool = False) -> Column[float]:
    """When something happened, seconds since the epoch."""
    return Column(name, Double, nullable=False, index=index, info={"limits": (0.0, LATEST)})


def _number(name: str = "seq") -> Column[int]:
    """A number that the database assigns."""
    return Column(name, _SEQ, primary_key=True, autoincrement=True)


log = Table(
    "log",
    metadata,
    Column("schema", Integer, primary_key=True, autoincrement=False),
    Column("seq", _SEQ, nullable=False),
    Column("at", Double, nullable=False),
    Column("secret", String(64), nullable=False),
)

decisions = Table(
    "decisions",
    metadata,
    _position(),
    Column("id", String(128), nullable=False, unique=True),
    _time("decided_at", index=True),
    _time("deadline"),
    _time("logged_at"),
    Column("mode", String(16), nullable=False),
    Column("policy", String(64), nullable=False),
    Column("version", _SEQ, nullable=False),
    Column("drawn", String(128), nullable=False),
    _amount("propensity", LEAST_PROPENSITY, 1.0, nullable=True),
    Column("deferred", Boolean, nullable=False),
    Column("episode_id", String(128)),
    Column("request_digest", String(64), nullable=False),
    Column("question_digest", String(16)),
    Column("arms", JSON, nullable=False),
    Column("probabilities", JSON, nullable=False),
    Column("features", JSON, nullable=False),
    Column("steps", JSON, nullable=False),
    Column("user_digest", String(64)),
    Column("erased", _SEQ),
    Column("draw_id", String(128)),
    Column("asked_by", String(256)),
    _seal(),
    Index(None, "episode_id", "seq"),
    Index(None, "logged_at", "seq"),
)

for _name, _of in (("decisions_by_draw_id", "draw_id"), ("decisions_kept_by_episode", "episode_id")):
    Index(
        _name,
        decisions.c[_of],
        decisions.c.seq,
        sqlite_where=text("draw_id IS NOT NULL"),
        postgresql_where=text("draw_id IS NOT NULL"),
    )

Index(
    "decisions_that_continue",
    decisions.c.logged_at,
    sqlite_where=text("mode = 'continued'"),
    postgresql_where=text("mode = 'continued'"),
)

Index(
    "decisions_by_user_digest",
    decisions.c.user_digest,
    sqlite_where=text("user_digest IS NOT NULL"),
    postgresql_where=text("user_digest IS NOT NULL"),
)

executions = Table(
    "executions",
    metadata,
    _position(),
    Column("decision_id", String(128), nullable=False, unique=True),
    Column("served", String(128)),
    Column("status", String(16), nullable=False),
    _count("steps"),
    _count("prompt_tokens"),
    _count("completion_tokens"),
    _amount("retrieval_s"),
    _amount("llm_s"),
    _amount("usd"),
    _count("n_passages"),
    Column("answered", Boolean, nullable=False),
    _time("finished_at"),
    Column("index_version", Text),
    Column("cached", Boolean, nullable=False),
    Column("tokens_by_model", JSON),
    Column("finish_reason", String(64), nullable=False),
    _seal(),
)

answer_marks = Table(
    "answer_marks",
    metadata,
    Column("asked_by", String(256), primary_key=True),
    Column("mark", String(32), primary_key=True),
    Column("decision_seq", _SEQ, primary_key=True, autoincrement=False, index=True),
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
    _time("received_at"),
    _time("logged_at", index=True),
    Column("event_time", Double),
    Column("source", String(16)),
    Column("key", String(128)),
    Column("labels", JSON),
    Column("rater", String(128)),
    _seal(),
    UniqueConstraint("id", "kind"),
)

Index(
    "feedback_that_was_early",
    feedback.c.decision_id,
    sqlite_where=text("early"),
    postgresql_where=text("early"),
)

observations = Table(
    "observations",
    metadata,
    _position(),
    Column("decision_id", String(128), nullable=False),
    Column("source", String(16), nullable=False),
    Column("arm", String(128), nullable=False),
    _amount("share", 0.0, 1.0),
    _amount("propensity", LEAST_PROPENSITY, 1.0),
    _amount("value", -1.0, 1.0, nullable=True),
    _count("steps"),
    _count("prompt_tokens"),
    _count("completion_tokens"),
    _amount("retrieval_s"),
    _amount("llm_s"),
    _amount("usd"),
    Column("judge", String(256), nullable=False),
    _count("judge_tokens"),
    _amount("judge_s"),
    _amount("judge_usd"),
    Column("swapped", Boolean, nullable=False),
    Column("answered", Boolean, nullable=False),
    _time("observed_at"),
    _seal(),
    UniqueConstraint("decision_id", "source", "arm"),
)

texts = Table(
    "texts",
    metadata,
    _position(),
    Column("document", JSON, nullable=False),
    Column("salt", String(SALT_CHARS), nullable=False),
)

ticks = Table("ticks", metadata, _position(), _time("at"))

examples = Table(
    "examples",
    metadata,
    Column("join", String(64), primary_key=True),
    Column("seq", _SEQ, primary_key=True, autoincrement=False),
    Column("decision_id", String(128), nullable=False),
    Column("metrics", JSON, nullable=False),
    Column("joined_by", _SEQ, nullable=False),
    Column("turns", JSON(none_as_null=True)),
    Column("rater", String(128)),
    Column("left_out", JSON(none_as_null=True)),
    UniqueConstraint("decision_id", "join"),
)

Index(
    "examples_rated",
    examples.c.join,
    examples.c.seq,
    sqlite_where=text("rater IS NOT NULL"),
    postgresql_where=text("rater IS NOT NULL"),
)

progress = Table(
    "progress",
    metadata,
    Column("reader", String(64), primary_key=True),
    Column("log_seq", _SEQ, nullable=False),
    Column("log_at", Double),
    Column("examples_seq", _SEQ, nullable=False),
    Column("left_out", JSON(none_as_null=True)),
    Column("settled_seq", _SEQ),
    Column("chain", String(64), nullable=False),
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
    Column("epoch", _SEQ, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("start", JSON),
    Column("router", String(64)),
    Column("arms", JSON),
    Column("arithmetic", Text),
    Column("state", LargeBinary),
    Column("logged_seq", _SEQ, nullable=False),
    Column("chain", String(64), nullable=False),
    Index("versions_by_recipe", "recipe", "version"),
    sqlite_autoincrement=True,
)

Index(
    "versions_with_state",
    versions.c.version,
    sqlite_where=text("state IS NOT NULL"),
    postgresql_where=text("state IS NOT NULL"),
)

operations = Table(
    "operations",
    metadata,
    _number(),
    Column("kind", String(16), nullable=False),
    Column("subject", String(256), nullable=False),
    Column("version", _SEQ, ForeignKey("versions.version")),
    Column("at", Double, nullable=False),
    Column("document", JSON, nullable=False),
    Column("once", String(384)),
    Index(None, "kind", "subject", "seq"),
    UniqueConstraint("kind", "once"),
    sqlite_autoincrement=True,
)

routers = Table(
    "routers",
    metadata,
    Column("digest", String(64), primary_key=True),
    Column("about", JSON, nullable=False),
    Column("model", LargeBinary, nullable=False),
    Column("unseen", LargeBinary, nullable=False),
    Column("at", Double, nullable=False),
)

router_scores = Table(
    "router_scores",
    metadata,
    Column("router", String(64), primary_key=True),
    Column("decision_id", String(128), primary_key=True),
    Column("scores", JSON),
)

jobs = Table(
    "jobs",
    metadata,
    _number(),
    Column("kind", String(16), nullable=False),
    Column("configured", String(64), nullable=False),
    Column("status", String(16), nullable=False),
    Column("worker", String(256)),
    Column("submitted_at", Double, nullable=False),
    Column("started_at", Double),
    Column("alive_at", Double),
    Column("finished_at", Double),
    Column("done", Double, nullable=False),
    Column("trigger", String(32)),
    Column("project", String(32)),
    Column("candidate", _SEQ),
    Column("evaluation", _SEQ),
    Column("error", Text),
    Column("request", JSON),
    Column("inputs", JSON),
    Column("steps", JSON),
    Column("result", JSON),
    Column("page", LargeBinary),
    Index(None, "kind", "seq"),
    Index(None, "status", "kind"),
    sqlite_autoincrement=True,
)

keys = Table(
    "keys",
    metadata,
    _number(),
    Column("public_id", String(128), nullable=False, unique=True),
    Column("secret_hash", String(64), nullable=False),
    Column("name", String(128), nullable=False),
    Column("scopes", JSON, nullable=False),
    Column("project", String(32), nullable=False),
    Column("source", String(16), nullable=False),
    Column("rpm_limit", BigInteger),
    Column("tpm_limit", BigInteger),
    Column("max_budget", Double),
    Column("token_budget", BigInteger),
    Column("budget_duration", String(8)),
    Column("expires", Double),
    Column("tags", JSON, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("groups", JSON),
    sqlite_autoincrement=True,
)

usage = Table(
    "usage",
    metadata,
    Column("key", String(128), primary_key=True),
    Column("period", String(16), primary_key=True),
    Column("requests", BigInteger, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    Column("usd", Double, nullable=False),
)

summary = Table(
    "summary",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("document", JSON, nullable=False),
)
