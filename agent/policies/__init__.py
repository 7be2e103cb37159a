"""Bandit policies: each maps a context to a distribution over arms. There is one file per policy."""

from . import sampling, vowpal
from .adaptive import Adaptive
from .base import Fixed, Policy, PolicyError, ReplayStep, Restart, Uniform, list_restarts
from .catalog import (
    POLICIES,
    PolicySpec,
    build_policy,
    check_untrusted,
)
from .encoding import check_context, check_reward, hash_features
from .epsilon_greedy import EpsilonGreedy
from .features import (
    FORM,
    EmbeddingSpec,
    FeatureError,
    FeatureSpec,
    describe,
    form,
    select_kinds,
)
from .linear import LinearThompson, LinUCB
from .neural import NeuralGreedy
from .router import Routed
from .sampling import Exploration, choose, compute_served_distribution, greedy, softmax
from .serialization import pack, seal, unpack, unseal
from .vowpal import VowpalWabbit

__all__ = [
    "FORM",
    "POLICIES",
    "Adaptive",
    "EmbeddingSpec",
    "EpsilonGreedy",
    "Exploration",
    "FeatureError",
    "FeatureSpec",
    "Fixed",
    "LinUCB",
    "LinearThompson",
    "NeuralGreedy",
    "Policy",
    "PolicyError",
    "PolicySpec",
    "ReplayStep",
    "Restart",
    "Routed",
    "Uniform",
    "VowpalWabbit",
    "build_policy",
    "check_context",
    "check_reward",
    "check_untrusted",
    "choose",
    "compute_served_distribution",
    "describe",
    "form",
    "greedy",
    "hash_features",
    "list_restarts",
    "pack",
    "sampling",
    "seal",
    "select_kinds",
    "softmax",
    "unpack",
    "unseal",
    "vowpal",
]
