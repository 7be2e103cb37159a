from .client import AsyncClient, Client
from .errors import AnswerFailedError, ClientError
from .replies import Answer, Choice, Passage, PolicyState, Receipts, Verification
from .stream import AsyncStream, Stream

__all__ = [
    "Answer",
    "AnswerFailedError",
    "AsyncClient",
    "AsyncStream",
    "Choice",
    "Client",
    "ClientError",
    "Passage",
    "PolicyState",
    "Receipts",
    "Stream",
    "Verification",
]
