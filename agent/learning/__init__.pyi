from . import rebuild, restore, router_scores, verify
from .candidate import publish_candidate
from .learner import Learner, LearnerThread
from .recipe import DIGEST_CHARS, Recipe, active_recipe, configuration_of, known_arms, live_arms, spec_of
from .restore import PolicyHistory, restore_policy

__all__ = [
    "DIGEST_CHARS",
    "Learner",
    "LearnerThread",
    "PolicyHistory",
    "Recipe",
    "active_recipe",
    "configuration_of",
    "known_arms",
    "live_arms",
    "publish_candidate",
    "rebuild",
    "restore",
    "restore_policy",
    "router_scores",
    "spec_of",
    "verify",
]
