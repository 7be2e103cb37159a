from . import rebuild, restore, verify
from .candidate import publish_candidate
from .learner import Learner, LearnerThread
from .recipe import DIGEST_CHARS, Recipe, active_recipe, configuration_of, spec_of
from .restore import PolicyHistory, policy_of

__all__ = [
    "DIGEST_CHARS",
    "Learner",
    "LearnerThread",
    "PolicyHistory",
    "Recipe",
    "active_recipe",
    "configuration_of",
    "policy_of",
    "publish_candidate",
    "rebuild",
    "restore",
    "spec_of",
    "verify",
]
