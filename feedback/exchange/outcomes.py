"""Tables with the outcome of every arm: RouterBench, RouteLLM, battles of two models.

Such a table lacks draws. Drawing an arm for each row, from a known seeded distribution, turns it into a log
with true propensities. All outcomes together can be written for `armwise lab train` instead.

    routerbench    a column an arm with its score, `<arm>|total_cost` with its dollars: sample_id, prompt,
                   eval_name, <arm>, <arm>|model_response, <arm>|total_cost (withmartian/routerbench,
                   convertors/common.py)
    wide           a column an arm with its score, named by --arms or by a prefix; costs by a prefix: the
                   tables of lm-sys/RouteLLM, routellm/evals (prompt, <arm>, <arm> with True or False)
    battles        model_a, model_b, and winner (model_a, model_b, tie, ...) or winner_model_a, winner_model_b
                   and winner_tie, as the Chatbot Arena publishes them (lmsys-arena-human-preference-55k)
"""

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from armwise.feedback.exchange.imported import BadValue, Faults
from armwise.feedback.exchange.messages import last_text
from armwise.feedback.exchange.records import FileRecord
from armwise.feedback.exchange.table import (
    Columns,
    Layout,
    is_missing,
    nearest,
    read_reward,
)
from armwise.feedback.jsonl import ExchangeError

DOLLARS = "|total_cost"
"""Suffix of the column of an arm's dollars in RouterBench."""

WIDE = Layout(
    "wide",
    fields={
        "question": ("question", "prompt", "query", "messages", "conversation_a", "conversation"),
        "arm": ("_arm",),
        "reward": ("_reward",),
        "distribution": ("_distribution",),
        "id": ("sample_id", "id", "question_id"),
        "time": ("tstamp",),
    },
    costs={"usd": ("_usd",)},
)
"""The layout of rows after the draw: with columns for the arm, its reward and the distribution."""

TIED = 0.5
"""Reward of both models after a tie."""


@dataclass(frozen=True, slots=True)
class ArmOutcome:
    """The outcome of an arm on a question.

    Attributes:
        score: The score, if known.
        usd: Cost in dollars, if known.
    """

    score: float | None
    usd: float | None


Outcomes = Callable[[FileRecord], Mapping[str, ArmOutcome]]
"""Returns the outcomes in a row by arm. Raises BadValue."""


def wide(arms: Sequence[str], scores: Mapping[str, str], dollars: Mapping[str, str]) -> Outcomes:
    """Return a reader of tables with a column for each arm.

    Args:
        arms: Names of the arms.
        scores: Column of the score, by arm.
        dollars: Column of the dollars, by arm, if it has one.
    """

    def read(record: FileRecord) -> dict[str, ArmOutcome]:
        outcomes = {}
        for arm in arms:
            score = _number(record.values, scores[arm])
            usd = _number(record.values, dollars[arm]) if arm in dollars else None
            if score is not None:
                outcomes[arm] = ArmOutcome(score, usd)
        if not outcomes:
            raise BadValue("no outcome", f"no column of {', '.join(scores.values())} has a score")
        return outcomes

    return read


def _number(values: Mapping[str, Any], column: str) -> float | None:
    value = values.get(column)
    if is_missing(value):
        return None
    try:
        return read_reward(value)
    except (ValueError, TypeError):
        raise BadValue(
            "score is not a number", f"{column} is {value!r:.80}; expected a number or true/false"
        ) from None


def battle(record: FileRecord) -> dict[str, ArmOutcome]:
    """Return the outcomes of a battle: 1 for the model that won, 0 for the other, 0.5 for both after a tie.

    Raises:
        BadValue: A model or the winner is missing.

    >>> battle(FileRecord("", {"model_a": "x", "model_b": "y", "winner": "model_b"}))["y"].score
    1.0
    """
    values = record.values
    first, second = (str(values.get(side) or "").strip() for side in ("model_a", "model_b"))
    if not first or not second or first == second:
        raise BadValue(
            "no two models",
            f"model_a is {first!r} and model_b {second!r}; expected two different models",
        )
    won = _winner(values)
    return {first: ArmOutcome(won, None), second: ArmOutcome(1.0 - won, None)}


def _winner(values: Mapping[str, Any]) -> float:
    """Return the reward of model_a. Raises BadValue."""
    if "winner" in values:
        winner = str(values["winner"]).strip()
        rewards = {"model_a": 1.0, str(values["model_a"]): 1.0, "model_b": 0.0, str(values["model_b"]): 0.0}
        if winner in rewards:
            return rewards[winner]
        if re.sub(r"[\s_]", "", winner.lower()).startswith(("tie", "bothbad")):
            return TIED
        raise BadValue("no winner", f"winner is {winner!r}; expected model_a, model_b or tie")
    marks = {name: values.get(name) for name in ("winner_model_a", "winner_model_b", "winner_tie")}
    won = [name for name, mark in marks.items() if not is_missing(mark) and read_reward(mark) == 1.0]
    if len(won) != 1:
        raise BadValue("no winner", f"{marks}; expected exactly one 1")
    return {"winner_model_a": 1.0, "winner_model_b": 0.0, "winner_tie": TIED}[won[0]]


def columns_of_arms(
    form: str,
    names: Sequence[str],
    arms: Sequence[str] | None,
    prefix: str | None,
    cost_prefix: str | None,
    source: object,
) -> tuple[list[str], dict[str, str], dict[str, str]]:
    """Return the arms of a wide table, the columns of their scores, and those of their dollars.

    Args:
        form: `routerbench` or `wide`.
        names: Columns of the table.
        arms: Names of the arms; None: all that have columns.
        prefix: Prefix of the columns of scores; None: they are named like the arms.
        cost_prefix: Prefix of the columns of dollars.
        source: The file, for messages.

    Raises:
        ExchangeError: These columns are missing.
    """
    columns = dict.fromkeys(names)
    if form == "routerbench":
        candidates = [name.removesuffix(DOLLARS) for name in names if name.endswith(DOLLARS)]
        candidates = [name for name in candidates if name in columns]
        if not candidates:
            raise ExchangeError(
                f"{source}: there is no pair of columns <arm> and <arm>{DOLLARS}, as in RouterBench; "
                "for another table, name the arms with --format wide "
                f"--arms{nearest('model' + DOLLARS, names)}"
            )
        prefix, cost_prefix = "", None
    elif prefix is not None:
        candidates = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
        if not candidates:
            raise ExchangeError(f"{source}: no column begins with {prefix!r}{nearest(prefix, names)}")
    else:
        candidates, prefix = list(arms or ()), ""
        if not candidates:
            raise ExchangeError(
                f"{source}: name the columns of arms with --arms a,b, or their common prefix with "
                f"--score-of; columns: {', '.join(names)}"
            )
    chosen = candidates if arms is None else list(arms)
    for arm in chosen:
        if prefix + arm not in columns:
            raise ExchangeError(
                f"{source}: no column {prefix + arm!r} for an arm{nearest(prefix + arm, names)}"
            )
    ends = {arm: f"{arm}{DOLLARS}" if cost_prefix is None else f"{cost_prefix}{arm}" for arm in chosen}
    return (
        chosen,
        {arm: prefix + arm for arm in chosen},
        {arm: name for arm, name in ends.items() if name in columns},
    )


def uniform_unit(seed: int, name: str) -> float:
    """Return a number in [0, 1) that a seed and a name determine.

    >>> 0.0 <= uniform_unit(0, "q1") < 1.0, uniform_unit(0, "q1") == uniform_unit(0, "q1")
    (True, True)
    """
    digest = hashlib.blake2b(
        name.encode(errors="replace"), digest_size=8, key=str(seed).encode()[:64]
    ).digest()
    return (int.from_bytes(digest) >> 11) / (1 << 53)


class OutcomeDraws:
    """Draws an arm for each row, from a known distribution over the arms whose outcome the row has.

    Args:
        outcomes: Reads the outcomes of a row.
        shares: Probability of each arm, scaled to sum to 1 over the arms of a row; None: uniform.
        seed: Seed of the draws, which depend on it and the place of the row alone.
        root: Prefix that is cut from the place of a row.
    """

    def __init__(self, outcomes: Outcomes, shares: Mapping[str, float] | None, seed: int, root: str) -> None:
        self._outcomes, self._shares, self._seed, self._root = outcomes, shares, seed, root

    def rows(self, record: FileRecord) -> Iterator[FileRecord]:
        """Yield a row with the drawn arm; a row that cannot be drawn from gets a fault."""
        if record.fault:
            yield record
            return
        try:
            outcomes = self._outcomes(record)
            p = self._distribution(outcomes)
        except BadValue as bad:
            yield FileRecord(record.where, fault=bad.detail, reason=str(bad))
            return
        at, total = uniform_unit(self._seed, record.where.removeprefix(self._root)), 0.0
        arm = next(name for name, share in reversed(p.items()) if share > 0.0)
        for name, share in p.items():
            total += share
            if at < total:
                arm = name
                break
        drawn = {"_arm": arm, "_reward": outcomes[arm].score, "_distribution": p, "_usd": outcomes[arm].usd}
        yield FileRecord(record.where, {**record.values, **drawn})

    def _distribution(self, outcomes: Mapping[str, ArmOutcome]) -> dict[str, float]:
        shares = {arm: 1.0 if self._shares is None else self._shares.get(arm, 0.0) for arm in outcomes}
        total = math.fsum(shares.values())
        if not total > 0.0:
            raise BadValue("no arm to draw", f"none of {', '.join(outcomes)} has a share of --draw")
        return {arm: share / total for arm, share in shares.items() if share > 0.0}


def outcome_lines(
    records: Iterable[FileRecord], outcomes: Outcomes, columns: Columns, root: str, faults: Faults
) -> Iterator[bytes]:
    """Yield the outcome of every arm as a line for `armwise lab train`: the score as `acc`, dollars as `usd`.

    Args:
        records: Rows of the table.
        outcomes: Reads the outcomes of a row.
        columns: Columns of the question and of the id.
        root: Prefix that is cut from the place of a row without an id.
        faults: Records the rows that cannot be written.
    """
    ids: set[str] = set()
    for record in records:
        try:
            lines = _read_lines(record, outcomes, columns, root, ids)
        except BadValue as bad:
            faults.add(record.where, bad)
        else:
            yield from lines


def _read_lines(
    record: FileRecord, outcomes: Outcomes, columns: Columns, root: str, ids: set[str]
) -> list[bytes]:
    """Return the lines of a row. Raises BadValue."""
    if record.fault:
        raise BadValue(record.reason, record.fault)
    values = record.values
    question = last_text(values.get(columns.question)) if columns.question else ""
    ident = str(values.get(columns.id) or "") if columns.id else ""
    ident = ident or record.where.removeprefix(root)
    if not question:
        raise BadValue("no question", f"{columns.question} is empty; expected the text of the question")
    if ident in ids:
        raise BadValue("duplicate", f"id {ident!r} already occurred above; ids must be unique")
    outcome_by_arm = outcomes(record)
    lines = []
    for arm, outcome in outcome_by_arm.items():
        if outcome.score is None or not 0.0 <= outcome.score <= 1.0:
            raise BadValue(
                "score not in [0, 1]", f"{arm} has the score {outcome.score}; expected a score in [0, 1]"
            )
        line = {"id": ident, "question": question, "arm": arm, "acc": outcome.score}
        line |= {} if outcome.usd is None else {"usd": outcome.usd}
        lines.append(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
    ids.add(ident)
    return lines
