"""What does a conversation gain that keeps its model, where tokens that an engine has cached are cheaper?

    python -m benchmarks.sticky [--conversations 400] [--seeds 10]

Three models, whose prices of a million tokens read, written, and read from the cache are in `PRICES`, answer
conversations of some eight turns. The prompt of a turn is the whole conversation so far, and some hundred new
tokens. What a model has read of it before is read from its cache; the rest is paid in full. How good a model
is depends on the kind of the turn. In `follow-ups` a conversation is of one kind, which its first question
shows, and each later one with probability 0.3: the rest read as `and why?` does. In `every turn shows` all
show it. In `changing` they do, and a turn is of another kind than the one before with probability 0.3. In `an
agent` half of them do, the kind changes with probability 0.2, and prompts are five times as long.

The policy learns online: a decision a turn from each turn, a kept draw from the means of its turns once
the conversation, or the draw, has ended. All settings see the same conversations and the same noise.

`regret` is what a turn earns less than with all qualities known: the better of one model for the whole
conversation, and the best model for each turn. Intervals are of 95 % over seeds, of the mean.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy.stats import t as student

from armwise.agent.policies import Exploration, Policy, PolicySpec, build_policy
from armwise.agent.turn import ArmInfo, Ask, Decider, Serving
from armwise.agent.turn.steps.cache import CacheStep
from armwise.agent.turn.steps.floor import FloorStep
from armwise.agent.turn.steps.sticky import StickyStep
from armwise.arms.llm import TokenPrices
from armwise.feedback.events import Context, Cost, Decision, Example, KeptDraw, Mode
from armwise.feedback.reward import Metric, Prices, RewardRule

Floats = NDArray[np.float64]

PRICES: Mapping[str, tuple[float, float, float]] = {
    "small": (0.15, 0.60, 0.015),
    "middle": (1.0, 4.0, 0.1),
    "large": (3.0, 15.0, 0.3),
}
"""USD for a million tokens read, written, and read from the cache."""

QUALITY: Mapping[str, tuple[float, float, float]] = {
    "talk": (0.80, 0.82, 0.84),
    "facts": (0.55, 0.78, 0.82),
    "code": (0.30, 0.50, 0.85),
}
"""Probability that a turn of a kind is good, by model."""

SETTINGS: Mapping[str, int] = {
    "a decision a turn": 0,
    "that counts caches": 0,
    "all at once": 0,
    "sticky: episode": 1000,
    "at most 4 turns": 4,
}
"""Most turns of a draw; 0 where every turn draws."""

COUNTS_CACHES = "that counts caches"

CACHE_TURNS: Mapping[str, float] = {COUNTS_CACHES: 5.0, "all at once": 1.0}
"""Turns over which a draw counts what a model lacks in its cache; 5 is the default of a service."""

WORLDS: Mapping[str, tuple[float, float, int]] = {
    "follow-ups": (0.0, 0.3, 600),
    "every turn shows": (0.0, 1.0, 600),
    "changing": (0.3, 1.0, 600),
    "an agent": (0.2, 0.5, 3000),
}
"""Probability that a turn is of another kind than the one before, that a later turn shows its kind, and mean
of the new tokens of a prompt."""

TURNS, WRITTEN = 8.0, 250
"""Mean number of turns of a conversation; tokens written."""


ARMS = tuple(PRICES)

RULE = RewardRule(
    metrics={"good": Metric()},
    cost=Prices(steps=0.0, usd=1.0),
    cost_weight=10.0,
    token_prices={
        arm: (read / 1000, wrote / 1000, kept / 1000) for arm, (read, wrote, kept) in PRICES.items()
    },
)


@dataclass(frozen=True)
class Turn:
    """One turn of a conversation.

    Attributes:
        kind: Kind of the question.
        shown: Kind that the policy sees.
        length: Tokens of its prompt.
        luck: Uniform number by which each model is good or not, shape (n_arms,).
    """

    kind: str
    shown: str
    length: int
    luck: Floats


@dataclass
class Outcome:
    """What turns earned and cost.

    Attributes:
        rewards: Expected reward of each turn.
        usd: Dollars of each turn.
        good: Whether each was good.
        best: Expected reward of each turn with all qualities known, as a mean of its conversation.
    """

    rewards: list[float] = field(default_factory=list)
    usd: list[float] = field(default_factory=list)
    good: list[float] = field(default_factory=list)
    best: list[float] = field(default_factory=list)


def conversations(
    rng: np.random.Generator, n: int, changes: float, shows: float, new: int
) -> Iterator[list[Turn]]:
    """Yield conversations of a world; its three numbers are those of `WORLDS`."""
    kinds = list(QUALITY)
    for _ in range(n):
        kind, length, turns = str(rng.choice(kinds)), 0, []
        for number in range(2 + int(rng.poisson(TURNS - 2))):
            if number and rng.random() < changes:
                kind = str(rng.choice([other for other in kinds if other != kind]))
            length += int(rng.uniform(0.5, 1.5) * new)
            shown = kind if not number or rng.random() < shows else "follow-up"
            turns.append(Turn(kind, shown, length, rng.random(len(ARMS))))
            length += WRITTEN
        yield turns


def tokens_of(turn: Turn, cached: int) -> tuple[int, int, int]:
    """Return the tokens read, written and of those read the cached ones."""
    return turn.length, WRITTEN, min(cached, turn.length)


def expected(turn: Turn, arm: str, tokens: tuple[int, int, int]) -> float:
    """Return the expected reward of a model's answer."""
    usd = RULE.usd_today(0.0, {arm: tokens})
    return QUALITY[turn.kind][ARMS.index(arm)] - RULE.cost_weight * usd


def best_of(turns: Sequence[Turn]) -> float:
    """Return the expected reward of a conversation with all qualities known, summed over its turns."""
    each = dict.fromkeys(ARMS, 0)
    greedy = 0.0
    for turn in turns:
        values = {arm: expected(turn, arm, tokens_of(turn, each[arm])) for arm in ARMS}
        arm = max(values, key=values.__getitem__)
        greedy += values[arm]
        each[arm] = turn.length
    fixed_rewards = []
    for arm in ARMS:
        before = [0, *(turn.length for turn in turns)]
        fixed_rewards.append(
            sum(expected(turn, arm, tokens_of(turn, n)) for turn, n in zip(turns, before, strict=False))
        )
    return max(greedy, *fixed_rewards)


def expect(cached: Mapping[str, int], turns: float) -> dict[str, Any] | None:
    """Return what a draw counts of what each model lacks in its cache, over so many turns."""
    usd = {
        arm: TokenPrices(usd_per_kilotoken_in=read / 1000, usd_per_kilotoken_cached=kept / 1000).compute_miss(
            max(cached.values()) - cached[arm]
        )
        for arm, (read, _, kept) in PRICES.items()
    }
    found = {arm: more / turns for arm, more in usd.items() if more}
    return {"usd_weight": RULE.usd_weight, "usd": found} if found else None


def run(policy: Policy, setting: str, seed: int, n: int, world: tuple[float, float, int]) -> Outcome:
    """Let a policy learn through conversations in one of the settings."""
    most = SETTINGS[setting]
    clock = count(1.0)

    def get_time() -> float:
        return next(clock)

    async def find(_: str) -> Any:
        raise AssertionError("what the log has is handed in")

    sticky = StickyStep(most, 1e9, find, get_time)
    cache, floor = CacheStep({}, find, RULE.usd_weight, get_time), FloorStep(Exploration(0.02))
    steps = (*([sticky] if most else ()), floor, cache)
    decider = Decider(Serving(policy, 1), steps, f"benchmark-{seed}", wait_s=1e9, clock=get_time)
    outcome = Outcome()
    for number, turns in enumerate(conversations(np.random.default_rng(seed), n, *world)):
        cached = dict.fromkeys(ARMS, 0)
        kept: KeptDraw | None = None
        examples: list[tuple[Decision, list[Example]]] = []
        for place, turn in enumerate(turns):
            context = Context("", {f"kind={turn.shown}": 1.0}, arms={arm: {} for arm in ARMS})
            ask = Ask(f"{seed}-{number}-{place}", "?", episode_id=f"talk-{number}")
            infos = {arm: ArmInfo() for arm in ARMS}
            draft = decider.draft(ask, infos, context, decider.serving, restricted=False)
            if most:
                draft.found[sticky.name] = sticky.keep(draft, kept)
            if setting in CACHE_TURNS:
                draft.found[cache.name] = expect(cached, CACHE_TURNS[setting])
            decision = decider.decide(draft)
            arm = decision.drawn
            tokens = tokens_of(turn, cached[arm])
            cached[arm] = turn.length
            usd = RULE.usd_today(0.0, {arm: tokens})
            good = float(turn.luck[ARMS.index(arm)] < QUALITY[turn.kind][ARMS.index(arm)])
            cost = Cost(prompt_tokens=tokens[0], completion_tokens=tokens[1], usd=usd)
            example = Example(0, decision, cost, {"good": good}, tokens_by_model={arm: tokens})
            if decision.mode is Mode.CONTINUED and kept is not None:
                examples[-1][1].append(example)
                kept = KeptDraw(
                    *(kept.id, arm, kept.policy, 1, kept.decided_at, decision.decided_at, kept.turns + 1)
                )
            else:
                _learn(policy, examples)
                examples = [(decision, [example])]
                at = decision.decided_at
                kept = KeptDraw(decision.id, arm, decision.policy, 1, at, at)
            outcome.rewards.append(expected(turn, arm, tokens))
            outcome.usd.append(usd)
            outcome.good.append(good)
        _learn(policy, examples)
        outcome.best.extend([best_of(turns) / len(turns)] * len(turns))
    return outcome


def _learn(policy: Policy, examples: Sequence[tuple[Decision, Sequence[Example]]]) -> None:
    """Learn draws with the mean reward of their turns, as the join makes them."""
    for decision, turns in examples:
        cost = Cost(usd=sum(example.cost.usd for example in turns))
        metrics = RULE.mean_of_turns([example.metrics for example in turns])
        reward = RULE.compute_learned_reward(Example(0, decision, cost, metrics, turns=len(turns)))
        assert reward is not None
        policy.learn(decision, reward)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean of values, and the half width of its interval of 95 %."""
    spread = float(np.std(values, ddof=1)) / len(values) ** 0.5
    return float(np.mean(values)), float(student.ppf(0.975, len(values) - 1)) * spread


def main(
    conversations_: Annotated[
        int, typer.Option("--conversations", min=10, help="Conversations of a run.")
    ] = 400,
    seeds: Annotated[int, typer.Option(min=2, help="Runs of each setting.")] = 10,
    policy: Annotated[str, typer.Option(help="Kind of the policy.")] = "linucb",
) -> None:
    """Print what each setting earns and costs in each world."""
    console = Console()
    columns = ("reward", "good", "dollars a 1,000 turns", "regret", "reward more than a decision a turn")
    table = Table("world", "setting", *columns)
    runs = [(world, setting) for world in WORLDS for setting in SETTINGS]
    outcomes: dict[tuple[str, str], list[Outcome]] = {}
    for world, setting in track(runs, console=Console(stderr=True)):
        outcomes[world, setting] = [
            run(
                build_policy(PolicySpec(kind=policy), list(ARMS)),
                *(setting, seed, conversations_, WORLDS[world]),
            )
            for seed in range(seeds)
        ]
    for (world, setting), repeats in outcomes.items():
        first = outcomes[world, next(iter(SETTINGS))]
        measures = (
            [float(np.mean(outcome.rewards)) for outcome in repeats],
            [float(np.mean(outcome.good)) for outcome in repeats],
            [1000 * float(np.mean(outcome.usd)) for outcome in repeats],
            [float(np.mean(outcome.best) - np.mean(outcome.rewards)) for outcome in repeats],
            [
                float(np.mean(outcome.rewards) - np.mean(base.rewards))
                for outcome, base in zip(repeats, first, strict=True)
            ],
        )
        cells = [f"{mean:.4f} ± {half:.4f}" for mean, half in map(interval, measures)]
        table.add_row(world, setting, *(cells if repeats is not first else [*cells[:-1], ""]))
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
