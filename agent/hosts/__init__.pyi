from . import arms
from .ingress import METRICS_FOLDER, Ingress, once_the_log_answers
from .jobs import JobsHost
from .learner import LearnerHost

__all__ = ["METRICS_FOLDER", "Ingress", "JobsHost", "LearnerHost", "arms", "once_the_log_answers"]
