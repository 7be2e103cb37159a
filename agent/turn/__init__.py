"""One request, from the question to the committed execution.

    ask --> eligible arms --> probes --> draw --> search --> answer --> record
            eligibility.py    probes.py  draw.py '-------loop.py-----'  record.py
            health.py

`loop.py` has the order of a turn, and each of the others one stop. What a turn may cost is in `price.py`.
"""

from .ask import Ask, ObservedDecision
from .cached_prompt import NO_MISSES, CacheMisses, expect_misses
from .checked import AnswerStage, CheckedAnswering, check_texts
from .draw import ArmScorer, Canary, Decider, Keeping, Serving, build_context
from .eligibility import ArmInfo, NoEligibleArmError, OverloadedError, check_eligibility
from .health import NO_MODELS, ArmHealth, llm_key
from .loop import TurnLoop, paced
from .places import Places
from .price import FREE, CostBound, LanguageModel, PriceList, attached_tokens, dearest
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

__all__ = [
    "FREE",
    "NONE_SERVED",
    "NO_MISSES",
    "NO_MODELS",
    "SEPARATOR",
    "UNPROBED",
    "AnswerStage",
    "AnsweredElsewhereError",
    "ArmHealth",
    "ArmInfo",
    "ArmScorer",
    "Ask",
    "CacheMisses",
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
    "Embed",
    "Embeddings",
    "Event",
    "FactLog",
    "Finished",
    "Keeping",
    "LanguageModel",
    "NoEligibleArmError",
    "ObservedDecision",
    "OverloadedError",
    "Places",
    "PriceList",
    "Probes",
    "Recall",
    "Serving",
    "Spending",
    "TurnError",
    "TurnLoop",
    "TurnRecorder",
    "attached_tokens",
    "build_context",
    "check_eligibility",
    "check_texts",
    "dearest",
    "expect_misses",
    "is_text",
    "llm_key",
    "paced",
    "probe",
    "tokens_in",
]
