from . import arms, choices, execution, messages, probe
from .decide import Decider, context_of
from .messages import ArmInfo, Ask, Decided, Finished, TurnError
from .pricing import Most
from .replica import Replica
from .telemetry import PointState, Telemetry
from .turn import TurnLoop, paced

__all__ = [
    "ArmInfo",
    "Ask",
    "Decided",
    "Decider",
    "Finished",
    "Most",
    "PointState",
    "Replica",
    "Telemetry",
    "TurnError",
    "TurnLoop",
    "arms",
    "choices",
    "context_of",
    "execution",
    "messages",
    "paced",
    "probe",
]
