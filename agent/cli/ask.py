"""The verbs of a user: ask, feedback."""

from typing import Annotated, Any

import typer

from agent.cli.console import console, explained
from agent.cli.options import URL, Key, Url


def ask(
    question: Annotated[str, typer.Argument(help="What to ask.")],
    arm: Annotated[
        str | None, typer.Option("--arm", help="Force an arm instead of letting the policy choose.")
    ] = None,
    url: Url = URL,
    key: Key = None,
) -> None:
    """Ask a question and stream the answer."""
    with explained():
        print_answer(question, arm, url, key)


def print_answer(question: str, arm: str | None, url: str, key: str | None) -> None:
    """Ask a question, and print the answer as it arrives, its passages and its cost. Raises ClientError."""
    from agent.cli.service import stream

    body = {
        "model": f"arm/{arm}" if arm else "auto",
        "messages": [{"role": "user", "content": question}],
        "stream": True,
        "agent": {"return": ["passages"]},
    }
    agent: dict[str, Any] = {}
    for event in stream(url, "/v1/chat/completions", key, body):
        agent |= event.get("agent") or {}
        for choice in event["choices"]:
            console.print(choice["delta"].get("content") or "", end="", markup=False, highlight=False)
    console.print()
    _print_decision(agent)


def _print_decision(agent: dict[str, Any]) -> None:
    def line(text: str) -> None:
        console.print(text, style="dim", markup=False, highlight=False)

    for rank, passage in enumerate(agent.get("passages", []), start=1):
        line(f"  [{rank}] {passage['id']}  {passage['title']}")
    cost = agent.get("cost") or {}
    line(
        f"arm {agent['arm_served']} (probability {agent['propensity']:.3f}, policy version "
        f"{agent['policy_version']}), {cost.get('tokens', 0)} tokens, "
        f"{cost.get('retrieval_ms', 0):.0f} + {cost.get('llm_ms', 0):.0f} ms"
    )
    line(f"armwise feedback {agent['decision_id']} thumb=1")


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
        from agent.cli.service import request
        from agent.client import ClientError

        items = [
            {"decision_id": decision_id, "metric_name": name, "value": value}
            for name, value in map(_value, values)
        ]
        for row in request("POST", url, "/v1/feedback", key, {"items": items})["items"]:
            if "error" in row:
                raise ClientError(f"{row['error']['code']}: {row['error']['message']}")
            console.print(f"{row['status']}, log position {row['log_seq']}", markup=False)


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
