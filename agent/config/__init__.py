"""The settings of the service, typed: `serve_config.yaml` as objects."""

from armwise.agent.configuration_file import ConfigError

from . import warm_start
from .app_config import DIALS, PRICE_REMEDY, TAKEN_NAMES, AppConfig
from .digest import DigestSpec
from .loading import (
    HOME_REMEDY,
    find_home_problem,
    load,
    make_home,
    parse,
    parse_with_environment,
    read_portfolio,
)
from .privacy import Privacy
from .sections import (
    CorpusSpec,
    Group,
    Http,
    Key,
    KeyBase,
    Limits,
    Observations,
    Project,
    RetrievalCacheSpec,
    Scope,
    StepSpec,
)
from .warm_start import WarmStartSpec

__all__ = [
    "DIALS",
    "HOME_REMEDY",
    "PRICE_REMEDY",
    "TAKEN_NAMES",
    "AppConfig",
    "ConfigError",
    "CorpusSpec",
    "DigestSpec",
    "Group",
    "Http",
    "Key",
    "KeyBase",
    "Limits",
    "Observations",
    "Privacy",
    "Project",
    "RetrievalCacheSpec",
    "Scope",
    "StepSpec",
    "WarmStartSpec",
    "find_home_problem",
    "load",
    "make_home",
    "parse",
    "parse_with_environment",
    "read_portfolio",
    "warm_start",
]
