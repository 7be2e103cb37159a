"""The variables of an environment that name proxies."""

import pytest

ALL_NAMES = tuple(
    case(f"{name}_proxy") for name in ("http", "https", "all", "no") for case in (str.lower, str.upper)
)


def forget_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the environment name no proxy."""
    for name in ALL_NAMES:
        monkeypatch.delenv(name, raising=False)
