"""Parameters of a router as data: each has a description and a range, and is an argument of the class."""

import inspect
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agent.labels import RouterError, Stage
from agent.router import Router


class Parameters(BaseModel):
    """What a router is built with, as JSON takes it."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


Strengths = Annotated[list[Annotated[float, Field(gt=0.0)]], Field(min_length=1)]
"""Weights of squared coefficients, each above 0."""


class StageParameters(Parameters):
    """Those of a router that can look at what is known of each arm."""

    stage: Literal["question", "retrieved", "answered"] = Field(
        "retrieved", description="How far a question must have come; what is known later is not looked at."
    )
    dims: int = Field(32, ge=0, description="Principal components kept of the question's embedding.")


P = TypeVar("P", bound=Parameters)


class Parametrised(Router, Generic[P]):
    """A router whose arguments are the fields of a model.

    Args:
        params: Fields of `Params`.

    Attributes:
        Params: The model.
        chosen: The parameters.

    Raises:
        RouterError: A parameter that is unknown or out of its range.
    """

    Params: ClassVar[type[Any]]
    __signature__: ClassVar[inspect.Signature]
    chosen: P

    def __init_subclass__(cls) -> None:
        """Show the parameters as those of the class."""
        super().__init_subclass__()
        if hasattr(cls, "Params"):
            cls.__signature__ = inspect.signature(cls.Params)

    def __init__(self, **params: Any) -> None:
        try:
            self.chosen = self.Params(**params)
        except ValidationError as error:
            wrong = error.errors()[0]
            name = ".".join(map(str, wrong["loc"]))
            raise RouterError(f"{self.kind}: {name}: {wrong['msg']}, got {wrong['input']!r}") from None
        if isinstance(self.chosen, StageParameters):
            self.stage = Stage[self.chosen.stage.upper()]

    @property
    def params(self) -> Mapping[str, Any]:
        """All of them, the defaults too."""
        return self.chosen.model_dump()


__all__ = ["Parameters", "Parametrised", "StageParameters", "Strengths"]
