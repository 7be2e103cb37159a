"""A client of a running service: ask, retrieve, decide, send feedback, read and promote policies.

Requests to a service that is busy or drops the connection are sent again under the same idempotency key, so
that each is one decision, or one fact of feedback.
"""

from armwise.agent.replies import ArmChoice, DecisionVerification, FeedbackReceipts, Passage, Policy

from .calls import Answer
from .client import AsyncClient, AsyncStream, Client, Stream
from .errors import AnswerFailedError, ClientError

__all__ = [
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
