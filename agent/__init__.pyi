from .client import Client
from .policies import Policy, choose

__all__ = ["Client", "Policy", "choose"]
