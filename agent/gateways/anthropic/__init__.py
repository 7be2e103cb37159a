"""Anthropic's messages protocol, for its clients and for coding agents that speak it.

POST /v1/messages --requests--> chat --the turn of /v1/chat/completions--> replies --> message or events
"""

from .messages import router
from .replies import DIALECT

__all__ = ["DIALECT", "router"]
