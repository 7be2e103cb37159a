"""The parts of the configuration that belong to no room of their own: corpus, limits, answers, learning."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

Scope = Literal["decide", "feedback", "admin"]


class Key(BaseModel):
    """A key and what it opens."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    env: str = Field(min_length=1, description="Environment variable of the service that holds the key.")
    scopes: tuple[Scope, ...] = Field(
        default=("decide", "feedback"),
        description="`decide` asks and reads, `feedback` tells, `admin` switches and replaces arms, chooses "
        "versions and verifies decisions.",
    )


class CorpusSpec(BaseModel):
    """Where the passages come from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(
        default="stdlib",
        pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]*$",
        description="Names its folder under home.",
    )
    source: str = Field(
        default="stdlib",
        description="A JSONL file, a BEIR folder, a folder of Markdown and text, or `stdlib`: "
        "the documentation of this interpreter's standard library.",
    )


class Limits(BaseModel):
    """What the service refuses, so that it stays up."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    in_flight: int = Field(
        default=64, ge=1, description="Requests a replica works on; more get 503 before the draw."
    )
    question_chars: int = Field(default=8000, ge=1, description="Characters in a question.")
    body_bytes: int = Field(default=1 << 20, ge=1024, description="Bytes in a request body.")
    passages: int = Field(default=50, ge=1, description="Largest k that a request may ask for.")
    arm_timeout_s: float = Field(default=10.0, gt=0, description="Seconds that an arm may take.")
    arm_failures: int = Field(
        default=3, ge=1, description="Failures of an arm in a row, in one replica, after which it rests."
    )
    arm_rest_s: float = Field(
        default=5.0,
        gt=0,
        le=3600,
        description="Seconds in which an arm that rests is not drawn, unless all rest; "
        "doubled each time that it fails again, up to 64 times as long.",
    )
    arm_caps: dict[str, PositiveInt] = Field(
        default_factory=dict,
        description="Most searches of an arm at once, in one replica, by its name; "
        "it is not drawn while it has no room, and where no arm has room the answer is 503.",
    )
    llm_timeout_s: float = Field(default=120.0, gt=0, description="Seconds that the language model may take.")
    completion_tokens: int = Field(
        default=1024, ge=1, description="Largest max_tokens that a request may ask for."
    )

    @property
    def answer_s(self) -> float:
        """Seconds from the draw of an arm to its answer at most: the arm, its fallback, the language model.

        What comes before the draw is no part of it, an embedding and a look at passages; nor are commits.
        """
        return 2 * self.arm_timeout_s + self.llm_timeout_s


class Answering(BaseModel):
    """How an answer is made of passages."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    passages: int = Field(default=4, ge=1, description="Passages that an arm returns.")
    word_budget: int = Field(default=400, ge=10, description="Words of passages that the model reads.")
    max_tokens: int = Field(default=128, ge=1, description="Tokens that the model writes when not told.")
    temperature: float = Field(default=0.0, ge=0, le=2, description="Sampling temperature when not told.")


class Learning(BaseModel):
    """How the log becomes versions."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    interval_s: float = Field(
        default=0.25, gt=0, description="Pause of the learner between two looks at the log."
    )
    poll_s: float = Field(
        default=0.25, gt=0, le=1, description="Pause of a replica between two looks for a version."
    )
