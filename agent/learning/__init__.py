"""Learning from the log: recipes, the learner, restored policies, rebuilding, and verification."""

from .learner import Learner, publish_candidate
from .rebuild import find_version, rebuild, verify_states
from .recipe import (
    DIGEST_CHARS,
    Recipe,
    active_recipe,
    digest_configuration,
    list_known_arms,
    live_arms,
    read_spec,
)
from .restore import (
    BusyError,
    PolicyHistory,
    earlier_checkpoint,
    restore_policy,
)
from .router_scores import StoredTrained, keep_router, open_router, score_by_searching
from .training import learn, train_on
from .verify import Verification, verify

__all__ = [
    "DIGEST_CHARS",
    "BusyError",
    "Learner",
    "PolicyHistory",
    "Recipe",
    "StoredTrained",
    "Verification",
    "active_recipe",
    "digest_configuration",
    "earlier_checkpoint",
    "find_version",
    "keep_router",
    "learn",
    "list_known_arms",
    "live_arms",
    "open_router",
    "publish_candidate",
    "read_spec",
    "rebuild",
    "restore_policy",
    "score_by_searching",
    "train_on",
    "verify",
    "verify_states",
]
