from . import new_config, points, sections, warm_start
from .app_config import AppConfig, ConfigError
from .loading import CONFIG, configured, load, parse, read_portfolio
from .sections import CorpusSpec, Key, Limits, Scope
from .warm_start import WarmStartSpec

__all__ = [
    "CONFIG",
    "AppConfig",
    "ConfigError",
    "CorpusSpec",
    "Key",
    "Limits",
    "Scope",
    "WarmStartSpec",
    "configured",
    "load",
    "new_config",
    "parse",
    "points",
    "read_portfolio",
    "sections",
    "warm_start",
]
