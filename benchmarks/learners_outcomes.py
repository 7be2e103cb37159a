"""Calm, on any table of outcomes: the shipped policy, our others, and the rivals of `learners_rivals.py`.

A table is a CSV file with a column `question` and one column of rewards an arm. Each policy answers the same
questions in the same orders, and learns the reward of the arm that it draws. A rival of ours explores by
itself; ours are drawn from with the exploration of `serve_config.yaml`.
"""

import csv
import gzip
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from learners_worlds import World
from numpy.typing import NDArray

from armwise.agent.policies import FeatureSpec, describe
from armwise.arms.models import Backbone, build_embedder
from armwise.feedback.events import Context

Floats = NDArray[np.float64]

ROOT = Path(__file__).parents[1]

SHIPPED, TEMPLATE = ROOT / "serve_config.yaml", ROOT / "agent/config/template.yaml"

FIRST = 300
"""Questions of the first column."""

BATCH = 64
"""Questions that are embedded at once."""


@dataclass(frozen=True, eq=False)
class Outcomes:
    """A table: questions, arms, the reward of each arm on each question, and what a policy sees of them.

    Attributes:
        contexts: The questions with form and embedding, as the shipped configuration describes them.
        plain: The same, as the template of `armwise init` describes them.
    """

    arms: tuple[str, ...]
    reward: Floats
    contexts: tuple[Context, ...]
    plain: tuple[Context, ...]

    def world(self, seed: int, turns: int, *, plain: bool) -> World:
        """Return the questions in one order, each asked once, at most so many."""
        order = np.random.default_rng(seed).permutation(len(self.reward))[:turns]
        contexts, reward = self.plain if plain else self.contexts, self.reward[order]
        some = tuple(contexts[at] for at in order)
        return World(some, self.arms, reward, reward, (0, len(order)), {})


def read_settings(path: Path) -> Mapping[str, Any]:
    """Return the configuration of a service from a file."""
    document = yaml.safe_load(path.read_text())
    found: Mapping[str, Any] = document["applications"][0]["args"]
    return found


def read_outcomes(path: Path) -> Outcomes:
    """Read a table, and embed its questions.

    Raises:
        SystemExit: The file is not such a table; the message names the column or the line.
    """
    opened: Callable[..., Any] = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", newline="") as file:
        rows = [*csv.DictReader(file)]
    if not rows or "question" not in rows[0]:
        raise SystemExit(f"{path}: a column `question` and one of rewards an arm were expected")
    arms = tuple(name for name in rows[0] if name != "question")
    try:
        reward = np.array([[float(row[arm]) for arm in arms] for row in rows])
    except (TypeError, ValueError) as error:
        raise SystemExit(f"{path}: a reward is no number: {error}") from error
    texts = [row["question"] for row in rows]
    plain = FeatureSpec.model_validate(read_settings(TEMPLATE)["features"])
    return Outcomes(arms, reward, describe_as_shipped(texts), tuple(describe(text, plain) for text in texts))


def describe_as_shipped(texts: Sequence[str]) -> tuple[Context, ...]:
    """Return what the shipped policy sees of questions: their form and their embedding."""
    settings = read_settings(SHIPPED)
    spec = FeatureSpec.model_validate({**settings["features"], "similarity": None})
    assert spec.embedding is not None
    embedder = build_embedder(Backbone.model_validate(settings["backbones"][spec.embedding.backbone]))
    vectors = np.concatenate(
        [embedder.encode_queries(texts[at : at + BATCH]) for at in range(0, len(texts), BATCH)]
    )
    return tuple(describe(text, spec, embedding=one) for text, one in zip(texts, vectors, strict=True))


@dataclass(frozen=True)
class Entry:
    """A policy of ours, as it plays.

    Attributes:
        spec: Its kind and parameters.
        exploration: Share of the draws that all arms have alike.
        plain: Whether it sees the form of a question alone.
    """

    spec: Mapping[str, Any]
    exploration: float
    plain: bool = False


def entries() -> dict[str, Entry]:
    """Return our policies by name: the shipped one, the template's, others, and VW's own explorers."""
    shipped, template = read_settings(SHIPPED), read_settings(TEMPLATE)
    share = float(shipped["exploration"])
    others = {
        "linucb": {"kind": "linucb"},
        "linear_thompson": {"kind": "linear_thompson"},
        "vowpal": {"kind": "vowpal"},
        "epsilon_greedy": {"kind": "epsilon_greedy"},
    }
    vw = {
        "VW epsilon .05": "--epsilon 0.05",
        "VW squarecb": "--squarecb --gamma_scale 1000",
        "VW regcb": "--regcbopt --mellowness 0.01 --cb_min_cost -0.2 --cb_max_cost 1.2",
        "VW softmax": "--softmax --lambda 20",
    }
    return {
        "shipped": Entry(shipped["policy"], share),
        "template": Entry(template["policy"], float(template["exploration"]), plain=True),
        **{name: Entry(spec, share) for name, spec in others.items()},
        **{
            name: Entry({"kind": "vowpal", "params": {"args": f"--cb_explore_adf {args}"}}, 0.0)
            for name, args in vw.items()
        },
    }


def summarise(lead: Floats) -> dict[str, float]:
    """Return 1,000 times the mean lead over the best fixed arm: at first, over all, and at the end."""
    parts = {"first_300": lead[:FIRST], "all": lead, "last_third": lead[-(len(lead) // 3) :]}
    return {name: 1000.0 * float(part.mean()) for name, part in parts.items()}
