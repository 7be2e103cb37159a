"""Kinds of arms, one file a kind.

An arm is built by hand, such as `BM25Arm.open`, or from its description, by `build_arm`.
"""

from . import catalog
from .bm25 import BM25Arm, BM25Params
from .catalog import ArmSpecError, build_arm, closure, prepare
from .cross_encoder import CrossEncoderParams
from .dense import DenseArm, DenseParams
from .diversity import DiscountedParams, DiverseArm
from .engines.collection import EngineArm
from .expand import ExpandArm, ExpandParams
from .external.frameworks import RetrieverArm, RetrieverParams
from .external.mcp import McpArm, McpParams
from .federated import FederatedArm, FederatedParams
from .fusion import FusionArm, FusionParams, fuse
from .generative.cascade import CascadeArm, CascadeParams
from .generative.ensemble import EnsembleArm, EnsembleParams
from .generative.multistep import MultistepArm, MultistepParams
from .generative.query_variants import QueryVariantsArm, QueryVariantsParams
from .generative.vendi_rag import VendiRagArm, VendiRagParams
from .graph import GraphArm, GraphParams
from .kind import (
    DEFAULT_HOST,
    EXTERNAL,
    AnswerSelector,
    ArmSpec,
    Batch,
    CascadeDecider,
    DeciderSpec,
    ExternalParams,
    Kind,
    Members,
    OpenTrained,
    Resources,
    SelectorSpec,
    Stages,
    Trust,
    Verdict,
    no_selector,
)
from .learned_fusion import LearnedFusionArm, LearnedFusionParams
from .new_arms import NewArms
from .priced import METER, Meter, metering
from .profiles import prepare_profiles, read_profiles
from .remote import RemoteArm, RemoteParams
from .rerank import PlackettLuceParams, RegularizeParams, RerankedArm, regularized
from .vendi import VendiParams
from .versioned import UNKNOWN, VersionedArm, is_settled

__all__ = [
    "DEFAULT_HOST",
    "EXTERNAL",
    "METER",
    "UNKNOWN",
    "AnswerSelector",
    "ArmSpec",
    "ArmSpecError",
    "BM25Arm",
    "BM25Params",
    "Batch",
    "CascadeArm",
    "CascadeDecider",
    "CascadeParams",
    "CrossEncoderParams",
    "DeciderSpec",
    "DenseArm",
    "DenseParams",
    "DiscountedParams",
    "DiverseArm",
    "EngineArm",
    "EnsembleArm",
    "EnsembleParams",
    "ExpandArm",
    "ExpandParams",
    "ExternalParams",
    "FederatedArm",
    "FederatedParams",
    "FusionArm",
    "FusionParams",
    "GraphArm",
    "GraphParams",
    "Kind",
    "LearnedFusionArm",
    "LearnedFusionParams",
    "McpArm",
    "McpParams",
    "Members",
    "Meter",
    "MultistepArm",
    "MultistepParams",
    "NewArms",
    "OpenTrained",
    "PlackettLuceParams",
    "QueryVariantsArm",
    "QueryVariantsParams",
    "RegularizeParams",
    "RemoteArm",
    "RemoteParams",
    "RerankedArm",
    "Resources",
    "RetrieverArm",
    "RetrieverParams",
    "SelectorSpec",
    "Stages",
    "Trust",
    "VendiParams",
    "VendiRagArm",
    "VendiRagParams",
    "Verdict",
    "VersionedArm",
    "build_arm",
    "catalog",
    "closure",
    "fuse",
    "is_settled",
    "metering",
    "no_selector",
    "prepare",
    "prepare_profiles",
    "read_profiles",
    "regularized",
]
