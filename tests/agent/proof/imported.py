"""Decisions of another system between three arms, as `armwise import` writes them."""

import numpy as np

from armwise.feedback.events import Context, Cost, Decision, Example

ARMS = ("cheap", "mid", "dear")

RIGHT, USD = (0.4, 0.7, 0.72), (0.001, 0.004, 0.02)

BEGIN = 1_700_000_000.0


def row(seq: int, drawn: int, p: tuple[float, ...], reward: float | None, kind: str = "faq") -> Example:
    decision = Decision(
        f"d{seq}",
        Context(f"question <b>{seq}</b>?", {f"kind={kind}": 1.0}),
        ARMS,
        p,
        ARMS[drawn],
        "imported",
        0,
        decided_at=BEGIN + 60.0 * seq,
    )
    metrics = {} if reward is None else {"reward": reward}
    return Example(seq, decision, Cost(usd=USD[drawn], llm_s=1.0 + drawn), metrics)


def simulated(n: int, p: tuple[float, ...] = (0.2, 0.6, 0.2), seed: int = 0) -> list[Example]:
    """Draws by a policy that sees no question, one of ten without a reward."""
    rng = np.random.default_rng(seed)
    made = []
    for seq in range(1, n + 1):
        drawn = int(rng.choice(3, p=p))
        reward = float(rng.random() < RIGHT[drawn]) if rng.random() < 0.9 else None
        made.append(row(seq, drawn, p, reward, ("faq", "code")[seq % 2]))
    return made
