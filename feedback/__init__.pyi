from .events import Context, Cost, Decision, Execution, Feedback
from .log import Store, open_log
from .reward import RewardRule

__all__ = ["Context", "Cost", "Decision", "Execution", "Feedback", "RewardRule", "Store", "open_log"]
