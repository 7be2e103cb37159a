"""Figures that the papers of RouteLLM and RouterDC report, to stand beside ours."""

from collections.abc import Mapping

ROUTELLM: Mapping[str, Mapping[str, tuple[float, float, float]]] = {
    "MMLU": {
        "similarity ranking, Arena and 1,500 of MMLU": (35.40, 71.55, 0.603),
        "matrix factorization, Arena and 1,500 of MMLU": (35.46, 71.40, 0.597),
        "BERT, Arena and 1,500 of MMLU": (41.30, 72.20, 0.572),
        "causal LLM, Arena and 1,500 of MMLU": (35.49, 70.31, 0.600),
        "matrix factorization, Arena": (45.00, 76.86, 0.524),
    },
    "GSM8K": {
        "similarity ranking, Arena and a judge": (41.21, 72.20, 0.568),
        "matrix factorization, Arena and a judge": (38.82, 72.62, 0.565),
        "BERT, Arena and a judge": (44.76, 79.09, 0.531),
        "causal LLM, Arena and a judge": (33.64, 63.26, 0.622),
    },
}
"""CPT(50 %), CPT(80 %) in percent and APGR, by task and by what was learned from.

Source: Ong et al. 2024, arXiv:2406.18665, tables of MMLU and GSM8K.
"""

TASKS: Mapping[str, str] = {
    "MMLU": "mmlu_test",
    "ARC-C": "arc_challenge_test",
    "HumanEval": "humaneval_test",
    "PreAlgebra": "MATH_prealgebra",
    "MBPP": "mbpp",
}
"""Tasks of RouterDC's tables that the file has, by their names there; it is trained on the first three."""

ROUTERDC: Mapping[str, tuple[float, ...]] = {
    "CosineClassifier": (59.72, 50.57, 46.33, 36.97, 38.48),
    "ZOOTER": (60.48, 53.13, 44.29, 34.44, 41.10),
    "LoraRetriever": (63.33, 57.10, 40.00, 35.36, 43.12),
    "RouterDC": (61.07, 58.52, 51.02, 38.81, 46.80),
}
"""Accuracy in percent, a column a task. Source: Chen et al. 2024, arXiv:2409.19886, tables 1 and 2."""
