"""Where arms, encoders and the language model run: in this process, or behind Ray Serve handles."""

from . import retrieval_cache
from .arm_host import ArmHost, ArmSettings
from .embedders import EmbedderHost, Embedders
from .generator_host import AddressedGenerator, GeneratorHost, LateGenerator, TracedGenerator
from .handles import ArmReplica, RemoteArmHost, RemoteEmbedder, RemoteGenerator, open_generator, reach
from .hosted_arms import HostedArms, SearchHost

__all__ = [
    "AddressedGenerator",
    "ArmHost",
    "ArmReplica",
    "ArmSettings",
    "EmbedderHost",
    "Embedders",
    "GeneratorHost",
    "HostedArms",
    "LateGenerator",
    "RemoteArmHost",
    "RemoteEmbedder",
    "RemoteGenerator",
    "SearchHost",
    "TracedGenerator",
    "open_generator",
    "reach",
    "retrieval_cache",
]
