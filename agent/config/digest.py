"""Settings of the digest: when a report is sent by itself, and where to."""

from typing import Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from armwise.agent.config.warm_start import compute_next
from armwise.arms.secrets import read_secret

SCHEMES = ("https://", "http://")


class DigestSpec(BaseModel):
    """A report of the time since the last one, sent as a webhook."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schedule: str = Field(
        default="0 9 * * 1",
        description="Times to send at, as a cron line in UTC. `0 9 * * 1` means Mondays at 9:00.",
    )
    url: str | None = Field(default=None, description="Address to send to. A Slack address is a secret.")
    url_env: str | None = Field(
        default=None,
        min_length=1,
        description="Environment variable with the address, instead of `url`.",
    )
    form: Literal["slack", "json"] = Field(
        default="slack",
        description=(
            "What is sent. `slack`: a message for an incoming webhook of Slack. `json`: the same as data."
        ),
    )
    by: str = Field(
        default="topic",
        min_length=1,
        max_length=100,
        pattern=r"^[^=]+$",
        description="Field of `agent.context` whose texts are the classes that quality is listed for.",
    )

    @field_validator("schedule")
    @classmethod
    def _check_schedule(cls, schedule: str) -> str:
        compute_next(schedule, 0.0)
        return schedule

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str | None) -> str | None:
        return None if url is None else _require_web(url, "url")

    @model_validator(mode="after")
    def _check_one(self) -> "DigestSpec":
        if (self.url is None) == (self.url_env is None):
            raise ValueError("give the address as `url`, or the variable that holds it as `url_env`")
        return self

    @property
    def shown_url(self) -> str | None:
        """`url` without its path and its password, which let others write there.

        >>> DigestSpec(url="https://me:pw@hooks.example.com:8443/T0/secret").shown_url
        'https://hooks.example.com:8443/...'
        """
        if self.url is None:
            return None
        address = urlsplit(self.url)
        return f"{address.scheme}://{address.netloc.rpartition('@')[2]}/..."

    def read_url(self) -> str:
        """Return the address. Raises ValueError if its variable is not set or holds something else."""
        if self.url_env is None:
            return self.url or ""
        url = read_secret(self.url_env)
        if not url:
            raise ValueError(f"digest: the environment variable {self.url_env} is not set")
        return _require_web(url, f"digest: the environment variable {self.url_env}")


def _require_web(url: str, where: str) -> str:
    """Return an address. Raises ValueError, without the address, which may be a secret."""
    if not url.startswith(SCHEMES):
        raise ValueError(f"{where}: an address that begins with https:// or http:// was expected")
    try:
        address = urlsplit(url)
        sound = bool(address.hostname) and address.port != 0 and url.isprintable() and " " not in url
    except ValueError:
        sound = False
    if not sound:
        raise ValueError(f"{where}: an address such as https://host/path or https://host:8443/ was expected")
    return url
