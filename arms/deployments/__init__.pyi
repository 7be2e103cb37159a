from . import placement, retrieval_cache
from .arm_host import ArmHost, ArmSettings
from .embedders import EmbedderHost, Embedders
from .generator_host import GeneratorHost
from .handles import ArmReplica, RemoteArmHost, RemoteEmbedder, RemoteGenerator, reach
from .hosted_arms import HostedArms, SearchHost

__all__ = [
    "ArmHost",
    "ArmReplica",
    "ArmSettings",
    "EmbedderHost",
    "Embedders",
    "GeneratorHost",
    "HostedArms",
    "RemoteArmHost",
    "RemoteEmbedder",
    "RemoteGenerator",
    "SearchHost",
    "placement",
    "reach",
    "retrieval_cache",
]
