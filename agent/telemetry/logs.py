"""The settings of telemetry, and the log as JSON lines with the ids of decision and trace."""

import logging
import os
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, quote_plus

import orjson
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import override

from armwise.agent.reporting import visible
from armwise.arms import tracing

turns = logging.getLogger("agent.turns")
"""Logger with a line for each turn."""

SECRET = re.compile(r"(sk-aw-[A-Za-z0-9]{1,32})-[A-Za-z0-9_-]+")
"""A key of a caller: its public id, and its secret."""

HIDDEN = 4
"""Fewest characters of a question that is removed from log lines; a shorter question reveals nothing."""


class TelemetrySpec(BaseModel):
    """Traces and logs. Set OTEL_EXPORTER_OTLP_ENDPOINT to the address that receives the traces."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    openinference: bool = Field(
        default=False,
        description=(
            "Whether trace spans also have OpenInference attributes, which Phoenix and Langfuse display."
        ),
    )
    logs: Literal["plain", "json"] = Field(
        default="plain",
        description=(
            "Format of the logs. `plain`: Ray's own format. `json`: one JSON object per line on stderr, "
            "with the ids of the decision and the trace. Each turn also gets its own line."
        ),
    )
    log_content: bool = Field(
        default=False, description="Whether JSON log lines include questions and the public ids of keys."
    )


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON.

    Args:
        content: Whether a line may hold the question of its turn.
    """

    def __init__(self, content: bool = False) -> None:
        super().__init__()
        self._content = content

    @override
    def format(self, record: logging.LogRecord) -> str:
        turn = tracing.TURN.get()
        line: dict[str, Any] = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": self._redact(record.getMessage(), turn.question),
            "pid": record.process,
        }
        if turn.decision_id:
            line["decision_id"] = turn.decision_id
        if ids := tracing.ids_of_span():
            line["trace_id"], line["span_id"] = ids
        if record.exc_info:
            text = record.exc_text or self.formatException(record.exc_info)
            line["exception"] = self._redact(text, turn.question)
        fields = getattr(record, "fields", {})
        line |= {name: visible(value) if isinstance(value, str) else value for name, value in fields.items()}
        return orjson.dumps(line, default=str).decode()

    def _redact(self, text: str, question: str) -> str:
        """Return a text with secrets and, if content is off, the question replaced."""
        text = SECRET.sub(r"\1-...", visible(text))
        if self._content or len(question) < HIDDEN:
            return text
        forms = (
            question,
            visible(question),
            repr(question)[1:-1],
            quote(question),
            quote_plus(question),
        )
        for form in dict.fromkeys(forms):
            text = text.replace(form, "[question]")
        return text


def log_turn(spec: TelemetrySpec, key: str | None, seconds: float, **facts: object) -> None:
    """Write the line of a turn, if the log is in JSON.

    Args:
        spec: Settings of the log.
        key: Public id of the caller's key.
        seconds: Time from admission to the end.
        facts: Further fields, such as the outcome.
    """
    if spec.logs != "json":
        return
    fields = {"seconds": round(seconds, 6), **facts}
    if spec.log_content:
        fields |= {"question": tracing.TURN.get().question, "key": key}
    turns.info("turn", extra={"fields": fields})


def log_json(*, content: bool) -> None:
    """Write every log line of this process as JSON, including Ray Serve's and those of libraries.

    Args:
        content: Whether a line may hold the question of its turn.
    """
    handler = logging.StreamHandler(sys.__stderr__)  # Ray Serve replaces sys.stderr by a log file of its own
    handler.setFormatter(JsonFormatter(content))
    for name in logging.root.manager.loggerDict:
        other = logging.getLogger(name)
        if other.handlers:
            other.handlers, other.propagate = [], True
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it has a line for each request, with its whole URL
    # vLLM reads this when it is imported, in the processes of its engine too
    os.environ.setdefault("VLLM_LOGGING_CONFIG_PATH", str(Path(__file__).with_name("vllm.json")))
