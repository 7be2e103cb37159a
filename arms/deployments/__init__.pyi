from .arms import ArmHost, RemoteArms
from .models import EmbedderHost, GeneratorHost, RemoteEmbedders, RemoteGenerator, reach

__all__ = [
    "ArmHost",
    "EmbedderHost",
    "GeneratorHost",
    "RemoteArms",
    "RemoteEmbedders",
    "RemoteGenerator",
    "reach",
]
