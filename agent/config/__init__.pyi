from . import points, sections, warm_start
from .app_config import CONFIG, AppConfig, ConfigError, load, parse, read_portfolio
from .new_config import render_config
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
    "load",
    "parse",
    "points",
    "read_portfolio",
    "render_config",
    "sections",
    "warm_start",
]
