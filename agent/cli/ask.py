"""The verbs of a user: ask, feedback."""

from typing import TYPE_CHECKING, Annotated

import typer

from agent.cli.console import console, explained
from agent.cli.options import POINT, URL, Key, Point, Url

if TYPE_CHECKING:
    from agent.client import Answer

ATTEMPTS = 3
"""Requests for an answer, where the service is busy."""

TIMEOUT_S = 600.0
"""Longest pause within an answer that is being streamed."""


def ask(
    question: Annotated[str, typer.Argument(help="What to ask.")],
    arm: Annotated[
        str | None, typer.Option("--arm", help="Force an arm instead of letting the policy choose.")
    ] = None,
    url: Url = URL,
    key: Key = None,
    point: Point = POINT,
) -> None:
    """Ask a question and stream the answer."""
    with explained():
        print_answer(question, arm, url, key, point)


def print_answer(question: str, arm: str | None, url: str, key: str | None, point: str = POINT) -> None:
    """Ask a question, and print the answer as it arrives, its passages and its cost. Raises ClientError."""
    from agent.client import Client

    with Client(url, key, timeout_s=TIMEOUT_S, attempts=ATTEMPTS) as client:
        stream = client.stream(question, arm=arm, point=None if point == POINT else point)
        for text in stream:
            console.print(text, end="", markup=False, highlight=False)
        console.print()
        _print_decision(stream.answer)


def _print_decision(answer: "Answer") -> None:
    def line(text: str) -> None:
        console.print(text, style="dim", markup=False, highlight=False)

    for rank, passage in enumerate(answer.passages, start=1):
        line(f"  [{rank}] {passage.id}  {passage.title}")
    cost = answer.agent.cost
    line(
        f"arm {answer.arm} (probability {answer.propensity:.3f}, policy version "
        f"{answer.agent.policy_version}), {cost.tokens} tokens, "
        f"{cost.retrieval_ms:.0f} + {cost.llm_ms:.0f} ms"
    )
    line(f"armwise feedback {answer.decision_id} thumb=1")


def feedback(
    decision_id: Annotated[str, typer.Argument(help="The decision that is rated.")],
    values: Annotated[
        list[str], typer.Argument(help="metric=value, one or more; true and false are values too.")
    ],
    url: Url = URL,
    key: Key = None,
) -> None:
    """Rate an answer."""
    with explained():
        from agent.client import Client

        metrics = dict(map(_value, values))
        with Client(url, key, attempts=1) as client:
            for row in client.feedback(decision_id, metrics).items:
                console.print(f"{row.status}, log position {row.log_seq}", markup=False)


def _value(text: str) -> tuple[str, float | bool]:
    """Read one `metric=value`.

    >>> _value("thumb=1"), _value("answer_correct=true")
    (('thumb', 1.0), ('answer_correct', True))
    """
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError(f"{text!r}: metric=value was expected, such as thumb=1")
    if value.lower() in ("true", "false"):
        return name, value.lower() == "true"
    try:
        return name, float(value)
    except ValueError:
        raise ValueError(f"{text!r}: {value!r} is neither a number, nor true or false") from None
