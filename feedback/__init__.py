"""The log in SQL, the training log, and off-policy evaluation.

In all of it, times are seconds since the epoch, UTC. `store` is the log, `connection` a transaction of it,
`rule` says how it is joined, and `join` is the digest of that.
"""

from .events import Context, Cost, Decision, Execution, Feedback
from .reward import RewardRule

__all__ = ["Context", "Cost", "Decision", "Execution", "Feedback", "RewardRule"]
