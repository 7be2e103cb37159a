"""Your own verdicts on some pairs: a file to fill in, and its way back.

The first requests of a random order are a random sample, so they are asked for. Which answer is shown
first is random, and nothing says whose it is.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import orjson

from armwise.agent.proof.judged_pairs import find_sample
from armwise.agent.proof.pairs import AskedPair, toss
from armwise.agent.proof.verdict import PairDraws, PairOutcome, StoredPair, order_pairs
from armwise.feedback.jsonl import ExchangeError, appearing, read_lines

CHOICES: Mapping[str, float] = {"first": 1.0, "second": -1.0, "equal": 0.0}
"""What `better` may say, as the preference for the first answer."""

NEEDED = (PairOutcome.JUDGED, PairOutcome.UNREADABLE)
"""Pairs that a label says something new of: of the others the value is a fact."""


def require_new(path: Path) -> None:
    """Refuse a file that may hold labels already. Raises ValueError."""
    if path.exists():
        raise ValueError(f"{path} exists: fill it in and name it with --labels, or move it")


def write_labels(draws: PairDraws, asked: Sequence[AskedPair], most: int, path: Path) -> int:
    """Write the first pairs of the random order that take a label to a file; return their number.

    Args:
        draws: Which pairs count; with a seed.
        asked: The pairs in the order of the draws.
        most: Most pairs.
        path: A new file, JSON lines.

    Raises:
        ValueError: The file exists.
    """
    require_new(path)
    assert draws.seed is not None
    sample = [asked[at] for at in find_sample(draws.draw()[1]).tolist()]
    chosen = [one for one in sample if one.pair.outcome in NEEDED][:most]
    with appearing(path) as file:
        for one in chosen:
            texts = one.answers if _is_challenger_first(one.pair, draws.seed) else one.answers[::-1]
            document = {
                "pair": _name(one.pair),
                "question": one.question,
                "first": texts[0],
                "second": texts[1],
                "better": "",
            }
            file.write((json.dumps(document, ensure_ascii=False) + "\n").encode())
    return len(chosen)


def _name(pair: StoredPair) -> str:
    return f"{pair.group}/{pair.member}"


def _is_challenger_first(pair: StoredPair, seed: int) -> bool:
    return toss(seed, "label", pair.group, pair.member) < 0.5


def read_labels(path: Path) -> dict[str, float | None]:
    """Return the preference for the first answer by pair; None: not filled in.

    Raises:
        ExchangeError: The file cannot be read, or a line is none of `write_labels`.
    """
    labels = dict[str, float | None]()
    for number, line in read_lines(path):
        try:
            document = orjson.loads(line)
            name, better = str(document["pair"]), document["better"]
        except (ValueError, KeyError, TypeError):
            raise ExchangeError(
                f'{path}, line {number}: an object with "pair" and "better" was expected'
            ) from None
        if better not in (*CHOICES, "", None):
            raise ExchangeError(
                f'{path}, line {number}: "better" is {better!r:.80}; first, second or equal was expected'
            )
        labels[name] = CHOICES.get(better) if better else None
    return labels


def label_pairs(
    draws: PairDraws, stored: Sequence[StoredPair], labels: Mapping[str, float | None]
) -> tuple[PairDraws, list[StoredPair]]:
    """Return the draws and the pairs with labels.

    A request counts as labelled if all before it in the random order do: those that take a label are in the
    file, filled in or not. One that is not filled in counts as the worse case.

    Args:
        draws: Which pairs count; with a seed.
        stored: The pairs.
        labels: What `read_labels` returns.

    Raises:
        ValueError: No pair is in the file.
    """
    assert draws.seed is not None
    ordered, place = order_pairs(draws, stored)
    order = [ordered[at] for at in find_sample(place).tolist()]
    n = next(
        (at for at, one in enumerate(order) if one.outcome in NEEDED and _name(one) not in labels), len(order)
    )
    if not any(one.outcome in NEEDED for one in order[:n]):
        raise ValueError(
            "--labels: no pair of this run is in the file, which must be of the same requests and seed"
        )
    labelled = [_label(one, labels, draws.seed) for one in stored]
    return draws.model_copy(update={"labelled": n}), labelled


def _label(pair: StoredPair, labels: Mapping[str, float | None], seed: int) -> StoredPair:
    if pair.outcome not in NEEDED:
        return pair.model_copy(update={"label": pair.value})
    first = labels.get(_name(pair))
    if first is None:
        return pair
    return pair.model_copy(update={"label": first if _is_challenger_first(pair, seed) else -first})
