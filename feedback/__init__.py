"""The log in SQL, the training log, and off-policy evaluation."""

from .events import Context, Cost, Decision, Execution, Feedback
from .reward import RewardRule

__all__ = ["Context", "Cost", "Decision", "Execution", "Feedback", "RewardRule"]
