"""The settings of traces and logs that no standard variable has."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class TelemetrySpec(BaseModel):
    """Traces and logs; where traces go is said by the environment: OTEL_EXPORTER_OTLP_ENDPOINT and so on."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    openinference: bool = Field(
        default=False,
        description="Whether spans have OpenInference's attributes too, which Phoenix and Langfuse show.",
    )
    logs: Literal["plain", "json"] = Field(
        default="plain",
        description="How each process writes its log: as Ray has it, or a JSON object a line on its stderr "
        "with the decision and the trace that a line belongs to, and a line for each turn.",
    )
    log_content: bool = Field(
        default=False, description="Whether lines in JSON may have questions, and the public ids of keys."
    )
