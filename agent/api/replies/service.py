"""Replies of the probes and the list of models."""

from typing import Literal

from agent.api.replies.base import Reply


class Health(Reply):
    """The process answers."""

    status: Literal["ok"]


class Deciding(Reply):
    """The replica chooses arms."""

    status: Literal["decides"]


class Ready(Reply):
    """Questions can be answered and logged."""

    status: Literal["ready"]
    version: int


class Model(Reply):
    """A name that a client can send as `model`."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class Models(Reply):
    """The names that a client can send as `model`."""

    object: Literal["list"]
    data: list[Model]
