"""Kinds of arms, one file a kind.

An arm is built from its description, by `build_arm`.
"""

from . import catalog
from .arm_graph import ArmGraph, SourceAwayError
from .bm25 import BM25Arm, BM25Params
from .build import build_arm, build_versioned, prepare
from .catalog import ArmSpecError
from .cross_encoder import CrossEncoderParams
from .dense import DenseArm, DenseParams
from .expand import ExpandArm, ExpandParams
from .fusion import FusionArm, FusionParams, fuse
from .kind import (
    DEFAULT_HOST,
    WAITING,
    AnswerCheck,
    AnswerSelector,
    ArmSpec,
    BatchedArms,
    CascadeDecider,
    CascadeStep,
    CheckedArms,
    CheckResult,
    DeciderSpec,
    ExternalArm,
    ExternalParams,
    Kind,
    MemberRanker,
    Members,
    NoRetrieval,
    OpenTrained,
    RankerSpec,
    Resources,
    SelectorSpec,
    Stages,
    no_selector,
)
from .priced import METER, Meter, metering
from .profiles import prepare_profiles, read_profiles
from .remote import RemoteArm, RemoteParams
from .rerank import RegularizeParams, RerankedArm, regularize
from .versioned import UNKNOWN, VersionedArm, is_settled

__all__ = [
    "DEFAULT_HOST",
    "METER",
    "UNKNOWN",
    "WAITING",
    "AnswerCheck",
    "AnswerSelector",
    "ArmGraph",
    "ArmSpec",
    "ArmSpecError",
    "BM25Arm",
    "BM25Params",
    "BatchedArms",
    "CascadeDecider",
    "CascadeStep",
    "CheckResult",
    "CheckedArms",
    "CrossEncoderParams",
    "DeciderSpec",
    "DenseArm",
    "DenseParams",
    "ExpandArm",
    "ExpandParams",
    "ExternalArm",
    "ExternalParams",
    "FusionArm",
    "FusionParams",
    "Kind",
    "MemberRanker",
    "Members",
    "Meter",
    "NoRetrieval",
    "OpenTrained",
    "RankerSpec",
    "RegularizeParams",
    "RemoteArm",
    "RemoteParams",
    "RerankedArm",
    "Resources",
    "SelectorSpec",
    "SourceAwayError",
    "Stages",
    "VersionedArm",
    "build_arm",
    "build_versioned",
    "catalog",
    "fuse",
    "is_settled",
    "metering",
    "no_selector",
    "prepare",
    "prepare_profiles",
    "read_profiles",
    "regularize",
]
