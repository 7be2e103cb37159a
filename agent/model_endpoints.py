"""Which models an endpoint lists, for `init`, `serve` without a configuration, and the doctor."""

import difflib
from collections.abc import Collection

import httpx

from armwise.arms import proxies
from armwise.arms.secrets import read_secret
from armwise.arms.upstream import UNCOMPRESSED, limit_size
from armwise.feedback.log import without_password

REPLY_BYTES = 1 << 24
"""Largest response: a list of models, or the state of a service."""

MODELS_TIMEOUT_S = 5.0
"""Seconds that an endpoint has to list its models."""

AROUND_A_PROXY = "or add its host to NO_PROXY to ask it directly"
"""Remedy for a proxy that cannot be used."""

LISTED_MODELS = 5
"""Number of available models that are named if the configured one is missing."""


class EndpointError(ValueError):
    """An endpoint does not list its models; the message names it, without a password.

    Attributes:
        status: Status of its response; None: it does not answer.
        remedy: What to do, if it is a proxy that cannot be used; else the caller knows more.
    """

    def __init__(self, message: str, status: int | None = None, remedy: str = "") -> None:
        super().__init__(message)
        self.status, self.remedy = status, remedy

    @property
    def refuses(self) -> bool:
        """Whether it refuses the key, or a request without one."""
        return self.status in (401, 403)


def list_models(
    address: str, variable: str | None, engine: str = "openai", timeout_s: float = MODELS_TIMEOUT_S
) -> list[str]:
    """Return the names of the models that an endpoint lists, sorted.

    Args:
        address: Base URL, without a slash at its end.
        variable: Environment variable with the API key; None: no key is sent.
        engine: Whose protocol it has, `openai` or `anthropic`.
        timeout_s: Most seconds to connect, and between two parts of the answer.

    Raises:
        EndpointError: It does not answer, refuses the key, or its response is no list of models.
    """
    key, place = read_secret(variable) if variable else "", without_password(address)
    if engine == "anthropic":
        url = f"{address}/models?limit=1000"
        headers = {"anthropic-version": "2023-06-01", **({"x-api-key": key} if key else {})}
    else:
        url, headers = f"{address}/models", {"authorization": f"Bearer {key}"} if key else {}
    try:
        reply = get(url, headers, timeout_s)
    except proxies.ProxySettingError as error:
        raise EndpointError(str(error), remedy=AROUND_A_PROXY) from None
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
        way = proxies.describe_way(address)
        raise EndpointError(f"no language model answers at {place}{way} ({type(error).__name__})") from None
    status = reply.status_code
    if status in (401, 403):
        what = f"the key in {variable}" if key else "a request without a key"
        raise EndpointError(f"{place} refuses {what} ({status})", status)
    try:
        return sorted(str(model["id"]) for model in reply.json()["data"])
    except (ValueError, KeyError, TypeError):
        message = f"{place} does not list its models (it returned status {status})"
        raise EndpointError(message, status) from None


def get(url: str, headers: dict[str, str], timeout_s: float) -> httpx.Response:
    """Return a response, which may be of any service. Raises httpx.HTTPError, also if it is too large."""
    sent = UNCOMPRESSED | headers
    with (
        proxies.client(timeout=timeout_s) as client,
        client.stream("GET", url, headers=sent) as response,
    ):
        limit_size(response, REPLY_BYTES).read()
    return response


def list_nearest(wrong: str, names: Collection[str]) -> str:
    """Return the names that are most like a wrong one, and how many more there are.

    >>> list_nearest("b", "abcdefg"), list_nearest("gpt-4o", [])
    ('it has: b, a, c, d, e and 2 more', 'it lists no models')
    """
    if not names:
        return "it lists no models"
    unlike = {name: -difflib.SequenceMatcher(None, wrong, name).ratio() for name in names}
    near, more = sorted(unlike, key=lambda name: (unlike[name], name)), len(unlike) - LISTED_MODELS
    return f"it has: {', '.join(near[:LISTED_MODELS])}" + (f" and {more:,} more" if more > 0 else "")
