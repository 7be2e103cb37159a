"""The verbs that send requests to a running service: ask, feedback, and those that operate it."""

import json
import os
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import quote

import typer
from rich.text import Text

from armwise.agent.cli.console import PLAIN, console, errors, report_errors
from armwise.agent.cli.options import CONFIG, URL, Key, Url
from armwise.agent.wings import VERIFY_RECEIPT, load

if TYPE_CHECKING:
    from armwise.agent.client import Answer, Client

Number = Annotated[int, typer.Argument(min=1, help="Number of the version; `GET /v1/policies` lists them.")]

Reason = Annotated[str, typer.Option("--reason", help="Reason, stored in the log.")]

BUILD_S = 3600.0
"""Seconds that the service may take to build the indexes of new arms, and to relearn a policy."""

LARGEST_SHARE = 0.5
"""Largest share of a canary; the service has the same limit."""

ATTEMPTS = 3
"""Most requests for an answer while the service is busy."""

TIMEOUT_S = 600.0
"""Longest pause within an answer that is being streamed."""

LEARN_S, LEARN_LOOK_S = 3.0, 0.1
"""Most seconds to wait until a rating that counts is learned, and the pause between two looks."""

MOST_WAIT_S = 30.0
"""Longest time that `armwise feedback` waits until a rating counts."""

POLICY_ROWS = {
    "kind": "kind",
    "params": "parameters",
    "floor": "least share of an arm",
    "version": "version",
    "digest": "digest",
    "examples_seq": "learned up to example",
    "applied_seq": "log read up to",
    "log_seq": "log ends at",
}
"""Rows of `armwise status` by the field of the policy."""

LAST = "last"
"""Stands for the id of the decision of this user's latest answer."""


def ask(
    question: Annotated[str, typer.Argument(help="What to ask.")],
    arm: Annotated[
        str | None, typer.Option("--arm", help="Use this arm instead of letting the policy choose.")
    ] = None,
    url: Url = URL,
    key: Key = None,
) -> None:
    """Ask a question and stream the answer."""
    with report_errors():
        print_answer(question, arm, url, key)


def print_answer(question: str, arm: str | None, url: str, key: str | None) -> None:
    """Ask a question, and print the answer as it arrives, its passages and its cost. Raises ClientError."""
    from armwise.agent.client import Client, ClientError

    with Client(url, key, timeout_s=TIMEOUT_S, attempts=ATTEMPTS) as client:
        stream = client.stream(question, arm=arm)
        try:
            for text in stream:
                console.print(Text(text), end="", highlight=False)
        finally:  # a part of an answer can be rated too
            with suppress(ClientError):
                _remember_decision(stream.decision_id, url)
        console.print()
        _print_decision(stream.answer, url, _find_ratings(client))


def _find_ratings(client: "Client") -> tuple[str, str] | None:
    """Return the best and the worst rating by a metric that people report; None if that is not known."""
    from armwise.agent.client import ClientError

    with suppress(ClientError, KeyError, TypeError):  # an older service, or another one
        return suggest_ratings(client.request("GET", "/v1/policy")["reward"]["metrics"])
    return None


def suggest_ratings(metrics: Mapping[str, Mapping[str, Any]]) -> tuple[str, str] | None:
    """Return the best and the worst value of `thumb`, or else of the first metric that people report.

    >>> suggest_ratings({"recall": {"type": "float", "range": [0, 1]}, "thumb": {"range": [-1, 1]}})
    ('thumb=1', 'thumb=-1')
    >>> suggest_ratings({"again": {"type": "boolean", "signal": "retry"}, "right": {"type": "boolean"}})
    ('right=true', 'right=false')
    >>> suggest_ratings({"minutes": {"type": "float", "range": [0, 9.5], "optimize": "min"}})
    ('minutes=0', 'minutes=9.5')
    """
    for name, metric in sorted(metrics.items(), key=lambda item: item[0] != "thumb"):
        if metric.get("signal") is None and metric.get("type", "float") != "categorical":
            boolean = metric.get("type") == "boolean"
            worst, best = ("false", "true") if boolean else (f"{end:g}" for end in metric["range"])
            if metric.get("optimize") == "min":
                worst, best = best, worst
            return f"{name}={best}", f"{name}={worst}"
    return None


def _print_decision(answer: "Answer", url: str, ratings: tuple[str, str] | None) -> None:
    def line(text: str) -> None:
        console.print(text, style="dim", highlight=False)

    for rank, passage in enumerate(answer.passages, start=1):
        line(f"  [{rank}] {passage.id}  {passage.title}")
    if any(choice.finish_reason == "length" for choice in answer.choices):
        line("The answer was cut at `answering.max_tokens` of the configuration.")
    cost = answer.cost
    drawn = f" (drawn with probability {answer.propensity:.3f}, policy version {answer.agent.policy_version})"
    models = f", {cost.tokens:,} tokens" if cost.tokens else ""
    line(f"Answered by {answer.arm}{drawn} in {cost.retrieval_ms + cost.llm_ms:.0f} ms{models}.")
    line(f"Decision {answer.decision_id}")
    if ratings is not None:
        best, worst = ratings
        elsewhere = "" if url in (URL, os.environ.get("ARMWISE_URL")) else f" --url {url}"
        rate = f"Rate it: armwise feedback {LAST} {best}{elsewhere}   (or {worst})"
        console.print(rate, style="dim", **PLAIN)  # in one line: a command to copy


def _last_decision_file() -> Path:
    """Return the file with the id of the latest answer, in the user's state folder."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "armwise" / "last_decision.json"


def _remember_decision(decision_id: str, url: str) -> None:
    """Write the id of an answer for `armwise feedback last`, if the user has a home."""
    with suppress(OSError, RuntimeError):  # there is no home, or it cannot be written
        file = _last_decision_file()
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        other = file.with_suffix(f".{os.getpid()}")
        with open(other, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as opened:
            json.dump({"url": url, "decision_id": decision_id}, opened)
        other.replace(file)


def _last_decision(url: str) -> str:
    """Return the id of the latest answer of a service. Raises ValueError."""
    try:
        last = json.loads(_last_decision_file().read_bytes())
        decision_id, of_service = str(last["decision_id"]), str(last["url"])
    except (OSError, RuntimeError, ValueError, TypeError, KeyError):
        message = "you have asked nothing yet. Run `armwise ask QUESTION` first, or give the id of a decision"
        raise ValueError(f"{LAST!r}: {message}") from None
    if of_service != url:
        raise ValueError(
            f"{LAST!r}: your last answer came from {of_service}, not {url}. Add --url {of_service}"
        )
    return decision_id


def feedback(
    decision_id: Annotated[
        str, typer.Argument(help="Id of the decision or of its answer; `last` is your latest answer.")
    ],
    values: Annotated[
        list[str],
        typer.Argument(help="metric=value, one or more. A value is a number, a label, true or false."),
    ],
    url: Url = URL,
    key: Key = None,
) -> None:
    """Rate an answer. Exits with 1 if the decision is not known yet; the rating is kept."""
    with report_errors():
        from armwise.agent.client import Client

        metrics = dict(map(_value, values))
        if decision_id == LAST:
            decision_id = _last_decision(url)
            console.print(f"Decision {decision_id}", **PLAIN)
        with Client(url, key, attempts=1) as client:
            rows = client.feedback(decision_id, metrics).kept
            for row in rows:
                saved = "Saved" if row.status == "stored" else "Saved before, and counted once"
                console.print(f"{saved}, position {row.log_seq} of the log.", **PLAIN)
            sentence = _what_it_changed(client, decision_id, {row.feedback_id for row in rows})
            if sentence:
                console.print(sentence, **PLAIN)


def _is_left_out(client: "Client", decision_id: str, feedback_ids: Collection[str]) -> bool:
    """Return whether a decision was learned without some of its feedback; False if that is not known."""
    from armwise.agent.client import ClientError

    try:
        record = client.request("GET", f"/v1/decisions/{quote(decision_id, safe='')}")
    except ClientError:
        return False
    return any(item["feedback_id"] in feedback_ids and not item["counts"] for item in record["feedback"])


def _what_it_changed(client: "Client", decision_id: str, feedback_ids: Collection[str]) -> str:
    """Wait for a rating to be learned, if that is soon, and describe its effect; empty: it is not known.

    Exits with 1 if the service does not know the decision.
    """
    from armwise.agent.client import ClientError

    path, ends_at = f"/v1/decisions/{quote(decision_id, safe='')}/now", time.monotonic() + LEARN_S
    try:
        state = client.request("GET", path)
        wait_s = state["closes_at"] - time.time()
        if not state["learned"] and 0.0 < wait_s <= MOST_WAIT_S:
            console.print(f"It counts in {wait_s:.0f} s, unless you change it until then.", **PLAIN)
            ends_at += wait_s
        while not state["learned"] and time.monotonic() < ends_at:
            time.sleep(LEARN_LOOK_S)
            state = client.request("GET", path)
    except ClientError as error:
        if error.code == "decision_not_found":
            errors.print(
                f"There is no decision {decision_id!r} yet. The rating is kept, and counts as soon as "
                "one with this id arrives. Check the id.",
                style="red",
                **PLAIN,
            )
            raise typer.Exit(1) from None
        if error.code == "not_drawn":
            return "The policy did not choose this arm by chance, so it does not learn from this rating."
        return ""  # the key may not read decisions, or the service is too busy or too old to say
    if state["learned"] and _is_left_out(client, decision_id, feedback_ids):
        return (
            "It does not count: another rating counts instead, or the policy had already learned from this "
            "answer, or the feedback window had closed. The log keeps the rating."
        )
    return describe_change(state, datetime.now().astimezone())


def describe_change(state: Mapping[str, Any], at: datetime) -> str:
    """Describe what the policy does now with a question that was rated.

    >>> even = {"library": 0.5, "language": 0.5}
    >>> state = {"arm_drawn": "library", "before": even, "now": {"library": 0.585, "language": 0.415}}
    >>> state |= {"learned": True, "closes_at": 1800.0}
    >>> describe_change(state, datetime.fromtimestamp(0, UTC))
    'Learned: library now gets 58 % of questions like this one. When you asked, it got 50 %.'
    >>> describe_change({**state, "now": {"library": 0.501}}, datetime.fromtimestamp(0, UTC))
    'Learned: library still gets 50 % of questions like this one.'
    >>> describe_change({**state, "learned": False}, datetime.fromtimestamp(0, UTC))
    'Not learned yet: the policy learns from it by 00:30, when the feedback window closes.'
    >>> describe_change({**state, "now": None}, datetime.fromtimestamp(0, UTC))
    'Learned. Another policy was promoted since you asked, so the two cannot be compared.'
    """
    if not state["learned"]:
        closes = datetime.fromtimestamp(state["closes_at"], at.tzinfo)
        if closes < at:
            return "Not learned: the feedback window of this decision has closed."
        when = f"{closes:%H:%M}" if closes.date() == at.date() else f"{closes:%Y-%m-%d %H:%M}"
        return f"Not learned yet: the policy learns from it by {when}, when the feedback window closes."
    if state["now"] is None:
        return "Learned. Another policy was promoted since you asked, so the two cannot be compared."
    arm = state["arm_drawn"]
    if len(state["before"]) == 1:
        return f"Learned. {arm} was the only arm, so there was nothing to choose."
    before, now = (round(100 * state[which][arm]) for which in ("before", "now"))
    if before == now:
        return f"Learned: {arm} still gets {now} % of questions like this one."
    return f"Learned: {arm} now gets {now} % of questions like this one. When you asked, it got {before} %."


def _value(text: str) -> tuple[str, float | bool | str]:
    """Read one `metric=value`; what is no number, true or false is a label, which the service knows.

    >>> _value("thumb=1"), _value("answer_correct=true"), _value("mood=good")
    (('thumb', 1.0), ('answer_correct', True), ('mood', 'good'))
    """
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError(f"{text!r}: metric=value was expected, such as thumb=1")
    if value.lower() in ("true", "false"):
        return name, value.lower() == "true"
    try:
        return name, float(value)
    except ValueError:
        return name, value


# -- operate -------------------------------------------------------------------------------------


def request(
    method: Literal["GET", "POST", "PUT"],
    url: str,
    path: str,
    key: str | None,
    body: Mapping[str, Any] | None = None,
    timeout_s: float = 30.0,
) -> dict[str, Any]:
    """Return the reply of the service; imports the HTTP client. Raises ClientError."""
    from armwise.agent.client import Client

    with Client(url, key, attempts=1) as client:
        return client.request(method, path, body, timeout_s)


def status(url: Url = URL, key: Key = None) -> None:
    """Show the active policy, whether it is pinned, how much it has learned, and the arms."""
    from rich.table import Table

    with report_errors():
        readiness, failed = _readiness(url, key)
        for failure in failed:  # first, as the rest is in the log, which may be what fails
            console.print(f"Failed: {failure}", style="yellow", **PLAIN)
        policy = request("GET", url, "/v1/policy", key)
        if missing := [row for row in POLICY_ROWS if row not in policy]:
            from armwise.agent.client import NOT_OURS, ClientError

            raise ClientError(f"{url}/v1/policy gave no {missing[0]!r}, which Armwise gives. {NOT_OURS}")
        arms = request("GET", url, "/v1/arms", key)["arms"]
        about = Table(title="policy", show_header=False)
        for row, label in POLICY_ROWS.items():
            about.add_row(label, str(policy[row]))
        about.add_row("serving", Text(describe_serving(policy)))
        about.add_row("ready", Text(readiness))
        if policy["promotion"]:
            about.add_row("promotion", Text(_describe_promotion(policy["promotion"])))
        for candidate in policy["canaries"]:
            about.add_row("canary", Text(describe_canary(candidate, len(policy["canaries"]))))
        if guard := policy.get("guard"):
            n = guard["classes_back"]
            about.add_row("guard", f"{n} {'class' if n == 1 else 'classes'} back to {guard['reference']}")
        if policy.get("feedback"):
            about.add_row("feedback", Text(_feedback(policy["feedback"])))
        if warm_starts := _read_warm_starts(url, key):
            about.add_row("warm start", Text(warm_starts))
        console.print(about)
        table = Table("arm", "kind", "parameters", "enabled", title="arms")
        for arm in arms:
            state = f"out: {arm['out']}" if arm.get("out") else "yes" if arm["enabled"] else "no"
            table.add_row(arm["name"], arm["kind"], json.dumps(arm["params"]), state)
        console.print(table)


def _readiness(url: str, key: str | None) -> tuple[str, list[str]]:
    """Return the readiness of a service with the progress of builds, and its failures."""
    from armwise.agent.background import failure_line
    from armwise.agent.client import ClientError

    try:
        reply = request("GET", url, "/ready", key)
    except ClientError as error:
        return f"no: {error}", []
    failed = [
        failure_line(one["what"], one["why"], one["remedy"], one["attempts"], one["next_attempt_at"])
        for one in reply.get("failed", ())
    ]
    building = reply.get("building")
    readiness = f"yes; in the background: {building}" if building else "yes"
    return f"{readiness}; something failed, see above" if failed else readiness, failed


def _read_warm_starts(url: str, key: str | None) -> str:
    """Describe the newest warm start and the next one; empty: the service does none."""
    from armwise.agent.client import ClientError

    try:
        return describe_warm_starts(request("GET", url, "/v1/warm-starts?limit=1", key))
    except ClientError:
        return ""


def describe_warm_starts(listed: Mapping[str, Any]) -> str:
    """Describe the newest warm start and the next one; empty if there is none.

    >>> run, due = {"id": 1, "trigger": "first", "started_at": 0.0}, {"at": 9000.0, "trigger": "schedule"}
    >>> running, held = {"status": "running", "finished_at": None}, {"status": "held", "finished_at": 60.0}
    >>> describe_warm_starts({"warm_starts": [run | running], "next": due})
    'run 1 (first): running since 1970-01-01 00:00:00 UTC; next at 1970-01-01 02:30:00 UTC (schedule)'
    >>> describe_warm_starts({"warm_starts": [run | held], "next": None})
    'run 1 (first): held at 1970-01-01 00:01:00 UTC'
    >>> describe_warm_starts({"warm_starts": [], "next": {"at": 0.0, "trigger": "first"}})
    'the first run begins once all arms are built'
    """
    parts = []
    for run in listed["warm_starts"][:1]:
        ended = run["finished_at"] is not None
        when = f"at {_at(run['finished_at'])}" if ended else f"since {_at(run['started_at'])}"
        parts.append(f"run {run['id']} ({run['trigger']}): {run['status'].replace('_', ' ')} {when}")
    if (due := listed["next"]) is not None:
        first = "the first run begins once all arms are built"
        parts.append(first if due["trigger"] == "first" else f"next at {_at(due['at'])} ({due['trigger']})")
    return "; ".join(parts)


def apply(
    portfolio: Annotated[Path, typer.Argument(help="A file that `armwise lab portfolio` wrote.")],
    keep: Annotated[
        list[str] | None,
        typer.Option("--keep", help="Another arm of the configuration that stays live; repeatable."),
    ] = None,
    url: Url = URL,
    key: Key = None,
) -> None:
    """Make the arms of a portfolio live without a restart.

    The configuration must declare them.
    """
    with report_errors():
        from armwise.agent.config import read_portfolio

        arms = read_portfolio(portfolio)["arms"]
        names = [name for name, arm in arms.items() if arm.get("action", True)]
        body = {"arms": [*dict.fromkeys((*names, *(keep or ())))]}
        now = request("PUT", url, "/v1/arms", key, body, BUILD_S)["arms"]
        console.print(f"Arms now: {', '.join(arm['name'] for arm in now)}", soft_wrap=True)


def promote(
    version: Number,
    reason: Reason,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Promote even if the gate holds it. The log records that it was forced."
        ),
    ] = False,
    url: Url = URL,
    key: Key = None,
) -> None:
    """Make the recipe of this version the active one, always with its newest version.

    A recipe other than the active one must pass the gate.
    """
    _promote(version, "promote", {"reason": reason, "force": force}, url, key)


def rollback(version: Number, reason: Reason, url: Url = URL, key: Key = None) -> None:
    """Pin exactly this version until the next promotion or rollback. Learning continues."""
    _promote(version, "rollback", {"reason": reason}, url, key)


def canary(
    version: Number,
    share: Annotated[
        float,
        typer.Option("--share", min=0.0, max=LARGEST_SHARE, help="Share of the traffic; 0 ends the canary."),
    ],
    reason: Reason,
    url: Url = URL,
    key: Key = None,
) -> None:
    """Give this version a share of the traffic, in addition to the active one."""
    _promote(version, "canary", {"reason": reason, "share": share}, url, key)


def _promote(version: int, action: str, body: Mapping[str, Any], url: str, key: str | None) -> None:
    with report_errors():
        path = f"/v1/policies/{version}/{action}"
        policy = request("POST", url, path, key, body, BUILD_S)
        console.print(describe_serving(policy), soft_wrap=True)
        for candidate in policy["canaries"]:
            console.print(describe_canary(candidate, len(policy["canaries"])), soft_wrap=True)


def _describe_promotion(promotion: Mapping[str, Any]) -> str:
    """Describe the promotion and the verdict of the gate.

    >>> promotion = {"version": 7, "since": 0.0, "reason": "better", "forced": True, "evaluation": 3}
    >>> _describe_promotion(promotion)
    'version 7 since 1970-01-01 00:00:00 UTC (better), forced, evaluation 3'
    >>> _describe_promotion(promotion | {"forced": False, "evaluation": None})
    'version 7 since 1970-01-01 00:00:00 UTC (better)'
    """
    text = f"version {promotion['version']} since {_at(promotion['since'])} ({promotion['reason']})"
    if promotion["forced"]:
        text += ", forced"
    return text if promotion["evaluation"] is None else f"{text}, evaluation {promotion['evaluation']}"


def describe_canary(canary: Mapping[str, Any], among: int = 1) -> str:
    """Describe a canary; `among` is the number of canaries that take turns.

    >>> canary = {"version": 7, "share": 0.1, "since": 0.0, "reason": "new labels", "deciding": True}
    >>> describe_canary(canary | {"automatic": False})
    'version 7 gets 10% of all requests since 1970-01-01 00:00:00 UTC (new labels)'
    >>> describe_canary(canary | {"automatic": True}, among=2)
    'version 7 gets 10% of 1 in 2 requests since 1970-01-01 00:00:00 UTC (new labels; automatic)'
    >>> describe_canary({**canary, "deciding": False})
    'version 7 should get 10%, but does not take part: it cannot be read, or gave no distribution'
    """
    version, share = canary["version"], f"{100 * canary['share']:g}%"
    if not canary["deciding"]:
        return (
            f"version {version} should get {share}, but does not take part: it cannot be read, "
            "or gave no distribution"
        )
    automatic = "; automatic" if canary["automatic"] else ""
    part = "all requests" if among == 1 else f"1 in {among} requests"
    return (
        f"version {version} gets {share} of {part} "
        f"since {_at(canary['since'])} ({canary['reason']}{automatic})"
    )


def _at(seconds: float) -> str:
    """Format a point in time.

    >>> _at(0.0)
    '1970-01-01 00:00:00 UTC'
    """
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"


def describe_serving(policy: Mapping[str, Any]) -> str:
    """Describe the version that decides."""
    serving, newest = policy["serving"], policy["newest"]
    if not serving["pinned"]:
        return f"version {serving['version']}; newer versions replace it automatically"
    if serving["chosen"] != serving["version"]:
        return (
            f"version {serving['version']}, although version {serving['chosen']} was chosen "
            f"({serving['reason']}). That one cannot be read; promote another"
        )
    return (
        f"version {serving['version']} since {_at(serving['since'])}, until you promote another "
        f"({serving['reason']}); the newest is {newest['version']}"
    )


def _feedback(state: Mapping[str, Any]) -> str:
    """Describe when decisions are learned, what waits, and how long feedback takes.

    >>> state = {"complete": "deadline", "wait_time": "PT30M", "waiting": 12, "values": 0}
    >>> state["correction_time"] = "PT5S"
    >>> _feedback(state)
    'a decision is learned PT30M after it was made; estimates leave out 12 decisions of the last PT30M'
    >>> state |= {"values": 900, "median_s": 2.0, "p99_s": 41.5, "late": 0.001, "suggested_wait_time": "PT1M"}
    >>> _feedback(state).partition("; 900")[2]
    ' ratings arrived after 2.0 s (median), 99 % within 41.5 s: you could set wait_time to PT1M'
    """
    later, soon = f"{state['wait_time']} after it was made", f"{state['correction_time']} after"
    when = {
        "any": f"a decision is learned {soon} its first rating",
        "all": f"a decision is learned {soon} all metrics have a value, or {later}",
        "deadline": f"a decision is learned {later}",
    }[state["complete"]]
    parts = [when]
    if state["waiting"]:
        parts.append(f"estimates leave out {state['waiting']:,} decisions of the last {state['wait_time']}")
    if state["values"]:
        took = f"{state['median_s']:.1f} s (median), 99 % within {state['p99_s']:.1f} s"
        late = f", {state['late']:.1%} too late to count" if state["late"] >= 0.005 else ""
        parts.append(f"{state['values']:,} ratings arrived after {took}{late}")
        if state["suggested_wait_time"] not in (None, state["wait_time"]):
            parts[-1] += f": you could set wait_time to {state['suggested_wait_time']}"
    return "; ".join(parts)


def verify(
    decision_id: Annotated[
        str | None,
        typer.Argument(
            metavar="[DECISION_OR_RECEIPT]",
            help="Id of a decision, or a receipt or verdict of `armwise prove` (.json).",
        ),
    ] = None,
    log: Annotated[
        str | None,
        typer.Argument(
            metavar="[LOG]",
            help="For a receipt: a file of `armwise log export`. By default the log.",
        ),
    ] = None,
    whole: Annotated[
        bool, typer.Option("--log", help="Verify that no fact of the log was changed or removed.")
    ] = False,
    url: Url = URL,
    key: Key = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="Configuration of the running service, instead of --url."),
    ] = None,
) -> None:
    """Recompute a decision or a receipt from the log, or verify the whole log. Exits with 1 if it differs.

    The running service recomputes a decision; this command recomputes a receipt and the log itself.
    """
    from rich.table import Table

    with report_errors():
        if (decision_id is None) is not whole:
            both = f"--log verifies the entire log: leave out {decision_id}, or leave out --log"
            raise ValueError(both if whole else "name a decision or a receipt, or --log for the entire log")
    if decision_id is None:
        from armwise.agent.cli.whole_log import verify_log

        verify_log(config or CONFIG)
        return
    if log is not None or decision_id.endswith(".json"):
        load(VERIFY_RECEIPT)(Path(decision_id), log, config or CONFIG)
        return
    with report_errors():
        if config is not None:
            from armwise.agent.access import local_url
            from armwise.agent.cli.serve_config import read_listening_address

            url = local_url(*read_listening_address(config))
        path = f"/v1/decisions/{quote(decision_id, safe='')}/verify"
        verification = request("GET", url, path, key, timeout_s=BUILD_S)
        title = f"{verification['mode']} by version {verification['policy_version']}"
        compared = verification
        if verification.get("elsewhere"):
            title, compared = f"shadow of version {verification['policy_version']}", verification["shadow"]
        table = Table("arm", "logged", "recomputed", "difference", title=title)
        logged, recomputed = compared["logged"], compared["recomputed"]
        for arm in logged | recomputed:
            logged_p, recomputed_p = logged.get(arm), recomputed.get(arm)
            difference = (
                "" if logged_p is None or recomputed_p is None else f"{abs(logged_p - recomputed_p):.3g}"
            )
            table.add_row(arm, *("" if p is None else repr(p) for p in (logged_p, recomputed_p)), difference)
        console.print(table)
        for sentence in verification["why"]:
            errors.print(sentence, style="red", soft_wrap=True)
        if not verification["verified"]:
            raise typer.Exit(1)
        if verification.get("elsewhere"):
            arm = verification["draw"]["arm"]
            console.print(f"verified: another system drew {arm}, the shadow is as logged", soft_wrap=True)
            return
        console.print(f"verified: arm {verification['draw']['arm']}")
