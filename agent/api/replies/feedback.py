"""Replies to feedback in the shapes of others."""

from agent.api.replies.base import Reply


class TensorZeroReceipt(Reply):
    """Feedback is durable."""

    feedback_id: str


class LangfuseReceipt(Reply):
    """A score is durable."""

    id: str


class LangfuseAccepted(Reply):
    """All scores of a list are durable."""

    message: str


class LangfuseError(Reply):
    """Why a score was refused."""

    message: str


class LangfuseResults(Reply):
    """Some scores of a list are durable."""

    accepted: int
    rejected: int
    errors: list[LangfuseError]


class OutcomeReceipt(Reply):
    """An outcome is durable."""

    id: str
    replay_id: str
    projection_revision: int
    duplicate: bool
    created_at: str
