"""Schema 16: all tables of a log, from which later revisions lead on; the first release has schema 18.

The definitions are a copy of `armwise.feedback.log.tables` as it was then: those change with later revisions,
this file does not. No release had an earlier schema.
"""

import secrets

import sqlalchemy as sa
from alembic import op

revision = "16"

down_revision = None

_SEQ = sa.BigInteger().with_variant(sa.Integer, "sqlite")  # SQLite numbers rows only in an INTEGER key


def upgrade() -> None:
    """Create the tables, the head of an empty log, and its secret."""
    op.create_table(
        "alarms",
        sa.Column("seq", _SEQ, autoincrement=True, nullable=False),
        sa.Column("recipe", sa.String(64), nullable=False),
        sa.Column("subject", sa.String(256), nullable=False),
        sa.Column("detector", sa.String(32), nullable=False),
        sa.Column("before", sa.Double, nullable=False),
        sa.Column("after", sa.Double, nullable=False),
        sa.Column("example_seq", _SEQ, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("seq", name="alarms_key"),
        sa.UniqueConstraint(
            "recipe", "subject", "example_seq", name="one_alarms_by_recipe_subject_example_seq"
        ),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "arm_sets",
        sa.Column("seq", _SEQ, autoincrement=True, nullable=False),
        sa.Column("arms", sa.JSON, nullable=False),
        sa.Column("configured", sa.String(64), nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("version", _SEQ),
        sa.PrimaryKeyConstraint("seq", name="arm_sets_key"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "decisions",
        sa.Column("seq", _SEQ, autoincrement=False, nullable=False),
        sa.Column("id", sa.String(128), nullable=False),
        sa.Column("decided_at", sa.Double, nullable=False),
        sa.Column("deadline", sa.Double, nullable=False),
        sa.Column("logged_at", sa.Double, nullable=False),
        sa.Column("mode", sa.String(16), nullable=False),
        sa.Column("policy", sa.String(64), nullable=False),
        sa.Column("version", _SEQ, nullable=False),
        sa.Column("floor", sa.Double),
        sa.Column("drawn", sa.String(128), nullable=False),
        sa.Column("propensity", sa.Double, nullable=False),
        sa.Column("deferred", sa.Boolean, nullable=False),
        sa.Column("episode_id", sa.String(128)),
        sa.Column("request_digest", sa.String(64), nullable=False),
        sa.Column("question", sa.Text, nullable=False),
        sa.Column("arms", sa.JSON, nullable=False),
        sa.Column("probabilities", sa.JSON, nullable=False),
        sa.Column("shadow", sa.JSON, nullable=False),
        sa.Column("features", sa.JSON, nullable=False),
        sa.Column("candidate", _SEQ, server_default="0", nullable=False),
        sa.Column("share", sa.Double, server_default="0", nullable=False),
        sa.Column("price", sa.Double, server_default="0", nullable=False),
        sa.Column("costs", sa.JSON),
        sa.Column("cost_weight", sa.Double),
        sa.Column("candidate_scores", sa.JSON),
        sa.Column("user_digest", sa.String(64)),
        sa.Column("erased", _SEQ),
        sa.PrimaryKeyConstraint("seq", name="decisions_key"),
        sa.UniqueConstraint("id", name="one_decisions_by_id"),
    )
    op.create_index("decisions_by_episode_id_seq", "decisions", ["episode_id", "seq"])
    op.create_index("decisions_by_logged_at", "decisions", ["logged_at"])
    op.create_index(
        "decisions_by_user_digest",
        "decisions",
        ["user_digest"],
        sqlite_where=sa.text("user_digest IS NOT NULL"),
        postgresql_where=sa.text("user_digest IS NOT NULL"),
    )
    op.create_table(
        "disabled_keys",
        sa.Column("seq", _SEQ, autoincrement=True, nullable=False),
        sa.Column("public_id", sa.String(128), nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("seq", name="disabled_keys_key"),
        sa.UniqueConstraint("public_id", name="one_disabled_keys_by_public_id"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "draw_secret",
        sa.Column("id", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("secret", sa.String(64), nullable=False),
        sa.Column("after", _SEQ, nullable=False),
        sa.PrimaryKeyConstraint("id", name="draw_secret_key"),
    )
    op.create_table(
        "epochs",
        sa.Column("epoch", _SEQ, autoincrement=True, nullable=False),
        sa.Column("holder", sa.String(256), nullable=False),
        sa.Column("taken_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("epoch", name="epochs_key"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "erasures",
        sa.Column("seq", _SEQ, autoincrement=True, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("scope", sa.String(16), nullable=False),
        sa.Column("by", sa.String(128), nullable=False),
        sa.Column("upto", _SEQ),
        sa.Column("n_decisions", sa.BigInteger, nullable=False),
        sa.Column("n_executions", sa.BigInteger, nullable=False),
        sa.Column("n_feedback", sa.BigInteger, nullable=False),
        sa.Column("n_observations", sa.BigInteger, nullable=False),
        sa.Column("subject", sa.String(64)),
        sa.PrimaryKeyConstraint("seq", name="erasures_key"),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "erasures_under_way",
        "erasures",
        ["at"],
        sqlite_where=sa.text("subject IS NOT NULL"),
        postgresql_where=sa.text("subject IS NOT NULL"),
    )
    op.create_table(
        "evaluations",
        sa.Column("seq", _SEQ, autoincrement=True, nullable=False),
        sa.Column("configured", sa.String(64), nullable=False),
        sa.Column("request", sa.JSON, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("submitted_at", sa.Double, nullable=False),
        sa.Column("started_at", sa.Double),
        sa.Column("alive_at", sa.Double),
        sa.Column("finished_at", sa.Double),
        sa.Column("worker", sa.String(256)),
        sa.Column("done", sa.Double, nullable=False),
        sa.Column("result", sa.JSON),
        sa.Column("html", sa.LargeBinary),
        sa.Column("error", sa.Text),
        sa.Column("project", sa.String(32)),
        sa.PrimaryKeyConstraint("seq", name="evaluations_key"),
        sqlite_autoincrement=True,
    )
    op.create_index("evaluations_by_status", "evaluations", ["status"])
    op.create_table(
        "examples",
        sa.Column("join", sa.String(64), nullable=False),
        sa.Column("seq", _SEQ, autoincrement=False, nullable=False),
        sa.Column("decision_id", sa.String(128), nullable=False),
        sa.Column("metrics", sa.JSON, nullable=False),
        sa.Column("joined_by", _SEQ, nullable=False),
        sa.PrimaryKeyConstraint("join", "seq", name="examples_key"),
        sa.UniqueConstraint("decision_id", "join", name="one_examples_by_decision_id_join"),
    )
    op.create_table(
        "executions",
        sa.Column("seq", _SEQ, autoincrement=False, nullable=False),
        sa.Column("decision_id", sa.String(128), nullable=False),
        sa.Column("served", sa.String(128)),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("steps", sa.Integer, nullable=False),
        sa.Column("prompt_tokens", sa.Integer, nullable=False),
        sa.Column("completion_tokens", sa.Integer, nullable=False),
        sa.Column("retrieval_s", sa.Double, nullable=False),
        sa.Column("llm_s", sa.Double, nullable=False),
        sa.Column("usd", sa.Double, nullable=False),
        sa.Column("passages", sa.JSON, nullable=False),
        sa.Column("answer", sa.Text),
        sa.Column("error", sa.Text, nullable=False),
        sa.Column("finished_at", sa.Double, nullable=False),
        sa.Column("stages", sa.JSON),
        sa.Column("index_version", sa.Text),
        sa.Column("cached", sa.Boolean, server_default=sa.false(), nullable=False),
        sa.Column("tokens_by_model", sa.JSON),
        sa.PrimaryKeyConstraint("seq", name="executions_key"),
        sa.UniqueConstraint("decision_id", name="one_executions_by_decision_id"),
    )
    op.create_table(
        "feedback",
        sa.Column("seq", _SEQ, autoincrement=False, nullable=False),
        sa.Column("id", sa.String(256), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("decision_id", sa.String(128)),
        sa.Column("episode_id", sa.String(128)),
        sa.Column("early", sa.Boolean, nullable=False),
        sa.Column("more", sa.Boolean, nullable=False),
        sa.Column("metric", sa.String(128), nullable=False),
        sa.Column("value", sa.Double),
        sa.Column("received_at", sa.Double, nullable=False),
        sa.Column("event_time", sa.Double),
        sa.Column("tags", sa.JSON, nullable=False),
        sa.Column("source", sa.String(16)),
        sa.Column("key", sa.String(128)),
        sa.Column("content", sa.JSON),
        sa.PrimaryKeyConstraint("seq", name="feedback_key"),
        sa.UniqueConstraint("id", "kind", name="one_feedback_by_id_kind"),
    )
    op.create_index("feedback_by_decision_id", "feedback", ["decision_id"])
    op.create_index("feedback_by_episode_id", "feedback", ["episode_id"])
    op.create_index(
        "feedback_that_was_early",
        "feedback",
        ["decision_id"],
        sqlite_where=sa.text("early"),
        postgresql_where=sa.text("early"),
    )
    op.create_table(
        "keys",
        sa.Column("seq", _SEQ, autoincrement=True, nullable=False),
        sa.Column("public_id", sa.String(128), nullable=False),
        sa.Column("secret_hash", sa.String(64), nullable=False),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("scopes", sa.JSON, nullable=False),
        sa.Column("project", sa.String(32), nullable=False),
        sa.Column("source", sa.String(16), nullable=False),
        sa.Column("rpm_limit", sa.BigInteger),
        sa.Column("tpm_limit", sa.BigInteger),
        sa.Column("max_budget", sa.Double),
        sa.Column("token_budget", sa.BigInteger),
        sa.Column("budget_duration", sa.String(8)),
        sa.Column("expires", sa.Double),
        sa.Column("tags", sa.JSON, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("groups", sa.JSON),
        sa.PrimaryKeyConstraint("seq", name="keys_key"),
        sa.UniqueConstraint("public_id", name="one_keys_by_public_id"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "leases",
        sa.Column("key", sa.String(128), nullable=False),
        sa.Column("period", sa.String(16), nullable=False),
        sa.Column("holder", sa.String(64), nullable=False),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.Column("tokens", sa.BigInteger, nullable=False),
        sa.Column("usd", sa.Double, nullable=False),
        sa.Column("until", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("key", "period", "holder", name="leases_key"),
    )
    op.create_table(
        "log_head",
        sa.Column("id", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("seq", _SEQ, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("id", name="log_head_key"),
    )
    op.create_table(
        "metrics",
        sa.Column("seq", _SEQ, autoincrement=True, nullable=False),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("type", sa.String(16), nullable=False),
        sa.Column("low", sa.Double, nullable=False),
        sa.Column("high", sa.Double, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("labels", sa.JSON),
        sa.PrimaryKeyConstraint("seq", name="metrics_key"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "observations",
        sa.Column("seq", _SEQ, autoincrement=False, nullable=False),
        sa.Column("decision_id", sa.String(128), nullable=False),
        sa.Column("source", sa.String(16), nullable=False),
        sa.Column("arm", sa.String(128), nullable=False),
        sa.Column("share", sa.Double, nullable=False),
        sa.Column("propensity", sa.Double, nullable=False),
        sa.Column("value", sa.Double),
        sa.Column("steps", sa.Integer, nullable=False),
        sa.Column("prompt_tokens", sa.Integer, nullable=False),
        sa.Column("completion_tokens", sa.Integer, nullable=False),
        sa.Column("retrieval_s", sa.Double, nullable=False),
        sa.Column("llm_s", sa.Double, nullable=False),
        sa.Column("usd", sa.Double, nullable=False),
        sa.Column("judge", sa.String(256), nullable=False),
        sa.Column("judge_tokens", sa.Integer, nullable=False),
        sa.Column("judge_s", sa.Double, nullable=False),
        sa.Column("judge_usd", sa.Double, nullable=False),
        sa.Column("swapped", sa.Boolean, nullable=False),
        sa.Column("passages", sa.JSON, nullable=False),
        sa.Column("answer", sa.Text),
        sa.Column("error", sa.Text, nullable=False),
        sa.Column("observed_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("seq", name="observations_key"),
        sa.UniqueConstraint(
            "decision_id", "source", "arm", name="one_observations_by_decision_id_source_arm"
        ),
    )
    op.create_table(
        "progress",
        sa.Column("join", sa.String(64), nullable=False),
        sa.Column("log_seq", _SEQ, nullable=False),
        sa.Column("log_at", sa.Double, nullable=False),
        sa.Column("examples_seq", _SEQ, nullable=False),
        sa.PrimaryKeyConstraint("join", name="progress_key"),
    )
    op.create_table(
        "rollup_positions",
        sa.Column("rule", sa.String(64), nullable=False),
        sa.Column("log_seq", sa.BigInteger, nullable=False),
        sa.Column("examples_seq", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("rule", name="rollup_positions_key"),
    )
    op.create_table(
        "rollups",
        sa.Column("width", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("start", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("arm", sa.String(128), nullable=False),
        sa.Column("n_arms", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("decisions", sa.BigInteger, nullable=False),
        sa.Column("finished", sa.BigInteger, nullable=False),
        sa.Column("fell_back", sa.BigInteger, nullable=False),
        sa.Column("failed", sa.BigInteger, nullable=False),
        sa.Column("cancelled", sa.BigInteger, nullable=False),
        sa.Column("answers", sa.BigInteger, nullable=False),
        sa.Column("steps", sa.BigInteger, nullable=False),
        sa.Column("tokens", sa.BigInteger, nullable=False),
        sa.Column("rewarded", sa.BigInteger, nullable=False),
        sa.Column("retrieval_s", sa.Double, nullable=False),
        sa.Column("llm_s", sa.Double, nullable=False),
        sa.Column("usd", sa.Double, nullable=False),
        sa.Column("reward", sa.Double, nullable=False),
        sa.Column("reward2", sa.Double, nullable=False),
        sa.Column("w", sa.Double, nullable=False),
        sa.Column("wr", sa.Double, nullable=False),
        sa.Column("w2", sa.Double, nullable=False),
        sa.Column("w2r", sa.Double, nullable=False),
        sa.Column("w2r2", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("width", "start", "arm", "n_arms", name="rollups_key"),
    )
    op.create_table(
        "router_scores",
        sa.Column("router", sa.String(64), nullable=False),
        sa.Column("decision_id", sa.String(128), nullable=False),
        sa.Column("scores", sa.JSON),
        sa.PrimaryKeyConstraint("router", "decision_id", name="router_scores_key"),
    )
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
        "runs",
        sa.Column("seq", _SEQ, autoincrement=True, nullable=False),
        sa.Column("configured", sa.String(64), nullable=False),
        sa.Column("trigger", sa.String(32), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("worker", sa.String(256), nullable=False),
        sa.Column("started_at", sa.Double, nullable=False),
        sa.Column("alive_at", sa.Double, nullable=False),
        sa.Column("finished_at", sa.Double),
        sa.Column("inputs", sa.JSON, nullable=False),
        sa.Column("steps", sa.JSON, nullable=False),
        sa.Column("candidate", _SEQ),
        sa.Column("evaluation", _SEQ),
        sa.Column("error", sa.Text),
        sa.PrimaryKeyConstraint("seq", name="runs_key"),
        sqlite_autoincrement=True,
    )
    op.create_index("runs_by_status", "runs", ["status"])
    op.create_table(
        "switches",
        sa.Column("seq", _SEQ, autoincrement=True, nullable=False),
        sa.Column("arm", sa.String(128), nullable=False),
        sa.Column("enabled", sa.Boolean, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("seq", name="switches_key"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "ticks",
        sa.Column("seq", _SEQ, autoincrement=False, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("seq", name="ticks_key"),
    )
    op.create_table(
        "usage",
        sa.Column("key", sa.String(128), nullable=False),
        sa.Column("period", sa.String(16), nullable=False),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.Column("tokens", sa.BigInteger, nullable=False),
        sa.Column("usd", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("key", "period", name="usage_key"),
    )
    op.create_table(
        "warm_starts",
        sa.Column("seq", _SEQ, autoincrement=True, nullable=False),
        sa.Column("labels", sa.Integer, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("seq", name="warm_starts_key"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "prices",
        sa.Column("seq", _SEQ, autoincrement=True, nullable=False),
        sa.Column("budget", sa.String(64), nullable=False),
        sa.Column("log_seq", _SEQ, nullable=False),
        sa.Column("price", sa.Double, nullable=False),
        sa.Column("debt", sa.Double, nullable=False),
        sa.Column("arms", sa.JSON, nullable=False),
        sa.Column("epoch", _SEQ, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.ForeignKeyConstraint(["epoch"], ["epochs.epoch"], name="prices_of_epochs"),
        sa.PrimaryKeyConstraint("seq", name="prices_key"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "versions",
        sa.Column("version", _SEQ, autoincrement=True, nullable=False),
        sa.Column("parent", _SEQ),
        sa.Column("recipe", sa.String(64), nullable=False),
        sa.Column("join", sa.String(64), nullable=False),
        sa.Column("policy", sa.JSON, nullable=False),
        sa.Column("examples_seq", _SEQ, nullable=False),
        sa.Column("applied_seq", _SEQ, nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("epoch", _SEQ, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("start", sa.JSON),
        sa.Column("router", sa.String(64)),
        sa.Column("arms", sa.JSON),
        sa.ForeignKeyConstraint(["epoch"], ["epochs.epoch"], name="versions_of_epochs"),
        sa.PrimaryKeyConstraint("version", name="versions_key"),
        sqlite_autoincrement=True,
    )
    op.create_index("versions_by_recipe", "versions", ["recipe", "version"])
    op.create_table(
        "checkpoints",
        sa.Column("version", _SEQ, autoincrement=False, nullable=False),
        sa.Column("state", sa.LargeBinary, nullable=False),
        sa.ForeignKeyConstraint(["version"], ["versions.version"], name="checkpoints_of_versions"),
        sa.PrimaryKeyConstraint("version", name="checkpoints_key"),
    )
    op.create_table(
        "promotions",
        sa.Column("seq", _SEQ, autoincrement=True, nullable=False),
        sa.Column("version", _SEQ, nullable=False),
        sa.Column("action", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("configured", sa.String(64)),
        sa.Column("forced", sa.Boolean, server_default=sa.false(), nullable=False),
        sa.Column("share", sa.Double, server_default="0", nullable=False),
        sa.Column("evaluation", _SEQ),
        sa.Column("arm_set", _SEQ),
        sa.ForeignKeyConstraint(["version"], ["versions.version"], name="promotions_of_versions"),
        sa.PrimaryKeyConstraint("seq", name="promotions_key"),
        sqlite_autoincrement=True,
    )
    connection = op.get_bind()
    connection.execute(sa.text("INSERT INTO log_head (id, seq, at) VALUES (1, 0, 0)"))
    made = sa.text("INSERT INTO draw_secret (id, secret, after) VALUES (1, :secret, 0)")
    connection.execute(made, {"secret": secrets.token_hex(32)})
