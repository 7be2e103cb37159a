"""The routers of the table, as data."""

from collections.abc import Iterator
from dataclasses import dataclass

from routing_data import DataSet
from routing_online import CALIBRATED

from armwise.agent.routers import RouterSpec
from armwise.arms import signals

TRAIN_FREE = ("overall_sim", "avg_sim", "max_sim", "var_sim", "moran")

AFTER = ", after retrieval"

CAREFUL = RouterSpec(kind="pointwise_xgboost", params={"dims": 0, "rounds": 600, "stage": "retrieved"})

TRAINED = (
    "pointwise_xgboost",
    "pairwise_xgboost",
    "lambdamart",
    "pointwise_svm",
    "pairwise_svm",
    "pointwise_ffn",
    "pairwise_ffn",
    "listnet",
)

VECTORS = (*signals.SIGNALS, *(f"{name}.scaled" for name in signals.SIGNALS))

SHORTLISTS = {
    "2 answers": ("rrf", "graph"),
    "3 answers": ("none", "rrf", "graph"),
    "4 answers": ("none", "bm25", "minilm", "graph"),
}
"""Arms that are all asked, for a router to pick among their answers; all arms besides."""


@dataclass(frozen=True)
class Row:
    """A router of the table.

    Attributes:
        name: As the table calls it.
        spec: What is fitted.
        arms: Those that it chooses among; None for all.
        label: What it is fitted to: a score, `em + recall`, `r3ag`, or the reward, which is net of cost.
        unseen: Columns of what was retrieved that it is not shown.
    """

    name: str
    spec: RouterSpec
    arms: tuple[str, ...] | None = None
    label: str = "em"
    unseen: tuple[str, ...] = ()


def rows_of(data: DataSet) -> Iterator[Row]:
    """Yield every router of the table, as far as the data set tells what it looks at."""

    def row(
        name: str, kind: str, *, label: str = "em", arms: tuple[str, ...] | None = None, **params: object
    ) -> Row:
        return Row(name, RouterSpec(kind=kind, params=params), arms, label)

    for kind in TRAIN_FREE if data.passages else ():
        yield row(kind, kind)
    for on in ("words", "embedding", "features"):
        yield row(f"ridge on {on}", "ridge", sees=on)
    for stage, after in (("question", ""), ("retrieved", AFTER)):
        for kind in TRAINED if data.passages or not after else ():
            yield row(f"{kind}{after}", kind, stage=stage)
    yield row("contrastive", "contrastive")
    yield row("capability (R3AG, reduced)", "capability")
    yield Row("ridge on features, calibrated, for the reward", CALIBRATED, label="reward")
    if data.passages:
        yield row("pairwise_ffn, for recall", "pairwise_ffn", label="recall", stage="question")
        yield row("contrastive, for recall", "contrastive", label="recall")
        for label in ("recall", "em"):
            yield row(f"contrastive, as in its paper, for {label}", "contrastive", label=label, loss="mean")
        yield row("capability (R3AG, reduced), for its utility", "capability", label="r3ag")
        yield Row(f"pointwise_xgboost{AFTER}, for EM + recall", CAREFUL, label="em + recall")
        for what, names in (("vectors", VECTORS), ("agreement", signals.FOUND), ("words", signals.WORDED)):
            yield Row(
                f"pointwise_xgboost{AFTER}, for EM + recall, without {what}",
                CAREFUL,
                label="em + recall",
                unseen=names,
            )
        for name, arms in {**SHORTLISTS, "all answers": None}.items():
            yield row(f"trees, {name}", "pointwise_xgboost", arms=arms, dims=0, rounds=600, stage="answered")
