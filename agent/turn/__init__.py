"""One request, from the question to the committed execution.

    ask --> eligible arms --> probes --> draw --> search --> answer --> record
            eligibility.py    probes.py  choose.py  search.py  answer.py  record.py
            health.py

`loop.py` has the order of a turn, and each of the others one stop. `steps` has the optional parts. What a
turn may cost is in `price.py`.
"""

from .answer import AnswerInProgress, AnswerWriter, read_until
from .ask import Ask, ObservedDecision, RequestDocument
from .checked import AnswerStage, CheckedAnswering, check_texts
from .choose import Decider, build_context
from .eligibility import ArmInfo, NoEligibleArmError, OverloadedError
from .health import NO_MODELS, ArmHealth, llm_key
from .loop import TurnLoop
from .places import SHARE_OF_A_KEY, Places
from .price import FREE, CostBound, LanguageModel, bound_search, bound_turn, estimate_attached_tokens
from .probes import UNPROBED, Embed, Embeddings, Probes, Recall, probe
from .record import (
    NONE_SERVED,
    SEPARATOR,
    AnsweredElsewhereError,
    CallNames,
    Choice,
    Choices,
    Commit,
    CountedLog,
    Decided,
    Event,
    FactLog,
    Finished,
    Spending,
    TurnError,
    TurnRecorder,
    is_text,
    tokens_in,
)
from .search import Searcher
from .serving import ArmScorer, Canary, Serving
from .steps import (
    BUILT_IN,
    Draft,
    StepError,
    StepRecord,
    TurnStep,
    Workers,
    bind,
    compute_distribution,
    load_built_in,
    weigh_arms,
    wire_steps,
)

__all__ = [
    "BUILT_IN",
    "FREE",
    "NONE_SERVED",
    "NO_MODELS",
    "SEPARATOR",
    "SHARE_OF_A_KEY",
    "UNPROBED",
    "AnswerInProgress",
    "AnswerStage",
    "AnswerWriter",
    "AnsweredElsewhereError",
    "ArmHealth",
    "ArmInfo",
    "ArmScorer",
    "Ask",
    "CallNames",
    "Canary",
    "CheckedAnswering",
    "Choice",
    "Choices",
    "Commit",
    "CostBound",
    "CountedLog",
    "Decided",
    "Decider",
    "Draft",
    "Embed",
    "Embeddings",
    "Event",
    "FactLog",
    "Finished",
    "LanguageModel",
    "NoEligibleArmError",
    "ObservedDecision",
    "OverloadedError",
    "Places",
    "Probes",
    "Recall",
    "RequestDocument",
    "Searcher",
    "Serving",
    "Spending",
    "StepError",
    "StepRecord",
    "TurnError",
    "TurnLoop",
    "TurnRecorder",
    "TurnStep",
    "Workers",
    "bind",
    "bound_search",
    "bound_turn",
    "build_context",
    "check_texts",
    "compute_distribution",
    "estimate_attached_tokens",
    "is_text",
    "llm_key",
    "load_built_in",
    "probe",
    "read_until",
    "tokens_in",
    "weigh_arms",
    "wire_steps",
]
