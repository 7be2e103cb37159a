"""What the replies share."""

from pydantic import BaseModel, ConfigDict


class Reply(BaseModel):
    """Base of the replies: fields may be added in later versions, so that clients have to pass over them."""

    model_config = ConfigDict(frozen=True)


Time = float
"""Seconds since the epoch, UTC."""
