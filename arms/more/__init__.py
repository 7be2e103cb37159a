"""Further kinds of arms: diverse and learned rankings, models that search, external tools."""

from .external.frameworks import HaystackArm, LangChainArm, LlamaIndexArm, RetrieverParams
from .external.mcp import McpArm, McpParams
from .generative.cascade import CascadeArm, CascadeParams
from .generative.ensemble import EnsembleArm, EnsembleParams
from .generative.multistep import MultistepArm, MultistepParams
from .generative.query_variants import QueryVariantsArm, QueryVariantsParams
from .generative.vendi_rag import VendiRagArm, VendiRagParams
from .graph import GraphArm, GraphParams
from .vendi import VendiParams

__all__ = [
    "CascadeArm",
    "CascadeParams",
    "EnsembleArm",
    "EnsembleParams",
    "GraphArm",
    "GraphParams",
    "HaystackArm",
    "LangChainArm",
    "LlamaIndexArm",
    "McpArm",
    "McpParams",
    "MultistepArm",
    "MultistepParams",
    "QueryVariantsArm",
    "QueryVariantsParams",
    "RetrieverParams",
    "VendiParams",
    "VendiRagArm",
    "VendiRagParams",
]
