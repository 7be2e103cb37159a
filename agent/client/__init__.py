"""A client of a running service: ask, retrieve, decide, send feedback, read and promote policies.

If the service is busy or drops the connection, the client sends the request again with the same idempotency
key, so that it still counts as one decision, or as one item of feedback.
"""

from armwise.agent.replies import ArmChoice, DecisionVerification, FeedbackReceipts, Passage, Policy

from .calls import NOT_OURS, Answer
from .client import AsyncClient, AsyncStream, Client, Stream
from .errors import AnswerFailedError, ClientError

__all__ = [
    "NOT_OURS",
    "Answer",
    "AnswerFailedError",
    "ArmChoice",
    "AsyncClient",
    "AsyncStream",
    "Client",
    "ClientError",
    "DecisionVerification",
    "FeedbackReceipts",
    "Passage",
    "Policy",
    "Stream",
]
