from . import arms
from .ingress import Ingress, once_the_log_answers
from .jobs import JobsHost
from .learner import LearnerHost

__all__ = ["Ingress", "JobsHost", "LearnerHost", "arms", "once_the_log_answers"]
