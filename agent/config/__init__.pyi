from . import new_config, points, sections, warm_start
from .app_config import AppConfig, ConfigError
from .home import make_home
from .loading import CONFIG, configured, load, parse, read_portfolio
from .sections import CorpusSpec, Http, Key, Limits, Scope
from .warm_start import WarmStartSpec

__all__ = [
    "CONFIG",
    "AppConfig",
    "ConfigError",
    "CorpusSpec",
    "Http",
    "Key",
    "Limits",
    "Scope",
    "WarmStartSpec",
    "configured",
    "load",
    "make_home",
    "new_config",
    "parse",
    "points",
    "read_portfolio",
    "sections",
    "warm_start",
]
