from . import catalog, features, sampling, shadow, untrusted, vowpal
from .base import Fixed, Policy, PolicyError, Uniform
from .catalog import PolicySpec, build_policy
from .features import FeatureError, FeatureSpec, describe
from .sampling import choose, served_distribution
from .shadow import ShadowPolicy

__all__ = [
    "FeatureError",
    "FeatureSpec",
    "Fixed",
    "Policy",
    "PolicyError",
    "PolicySpec",
    "ShadowPolicy",
    "Uniform",
    "build_policy",
    "catalog",
    "choose",
    "describe",
    "features",
    "sampling",
    "served_distribution",
    "shadow",
    "untrusted",
    "vowpal",
]
