"""Every number of the configuration is finite, and neither true nor false."""

from collections.abc import Iterator
from math import inf, nan
from typing import Any, get_args, get_origin

import pytest
from pydantic import BaseModel, ValidationError

from armwise.agent.config import AppConfig
from armwise.agent.policies import POLICIES
from armwise.agent.routers import ROUTERS
from armwise.agent.spec import choices_in, find_params
from armwise.arms.retrievers import catalog
from tests.agent.config.test_app_config import changed, complaint
from tests.documents.configuration import models_in

ROOTS: list[type[BaseModel]] = [
    AppConfig,
    *(kind.params for kind in catalog.KINDS.values()),
    *(find_params(kind) for kind in [*POLICIES.values(), *ROUTERS.values()]),
]

WRONG = (inf, -inf, nan, True, False, "inf", "one")


def models(*kinds: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """Yield models, and those inside of their fields, each once."""
    left, seen = [*kinds], set[type[BaseModel]]()
    while left:
        if (model := left.pop()) not in seen:
            seen.add(model)
            yield model
            left += [inner for field in model.model_fields.values() for inner in models_in(field.annotation)]


def samples(annotation: Any, wrong: object) -> Iterator[object]:
    """Yield values of a type, each with something wrong in the place of one of its numbers."""
    for choice in choices_in(annotation):
        inner = get_args(choice)
        if choice is float:
            yield wrong
        elif get_origin(choice) is dict:
            yield from ({"a": value} for value in samples(inner[1], wrong))
        elif get_origin(choice) in (list, tuple):
            for place, part in enumerate(inner):
                for value in samples(part, wrong):
                    yield [value if at == place else 0.5 for at in range(len(inner))]


FIELDS = {
    f"{model.__module__}.{model.__name__}.{name}": (model, name)
    for model in models(*ROOTS)
    for name, field in model.model_fields.items()
    if any(True for _ in samples(field.annotation, 0.5))
}


def test_the_fields_with_numbers_are_those_of_all_parts_of_the_configuration() -> None:
    names = {place.rpartition(".")[0].rpartition(".")[2] + f".{name}" for place, (_, name) in FIELDS.items()}
    assert names >= {
        "EndpointSpec.usd_per_kilotoken_in",
        "EndpointSpec.usd_per_kilotoken_cached",
        "Prices.usd",
    }
    assert names >= {"RewardRule.cost_weight", "RewardRule.clip", "RewardRule.token_prices", "Metric.values"}
    assert names >= {
        "Limits.arm_timeout_s",
        "ArmSpec.usd",
        "BM25Params.b",
        "LinUCBParams.alpha",
        "GateSpec.margin",
    }


@pytest.mark.parametrize("place", sorted(FIELDS))
def test_a_number_that_is_not_finite_or_no_number_is_refused(place: str) -> None:
    model, name = FIELDS[place]
    field = model.model_fields[name]
    key = field.alias or name
    for value in (value for wrong in WRONG for value in samples(field.annotation, wrong)):
        with pytest.raises(ValidationError) as raised:
            model.model_validate({key: value})
        refused = [problem for problem in raised.value.errors() if problem["type"] != "missing"]
        assert any(problem["loc"][:1] in ((key,), ()) for problem in refused), (value, refused)


def test_a_number_that_is_none_is_named_with_its_place() -> None:
    assert complaint(changed("reward/cost/usd", True)) == "reward.cost.usd: true is not a number"
    assert "reward.cost_weight: Input should be a finite number, got inf" in complaint(
        changed("reward/cost_weight", inf)
    )
    assert "llm.usd_per_kilotoken_in: Input should be a finite number, got inf" in complaint(
        changed("llm", {"engine": "scripted", "usd_per_kilotoken_in": inf})
    )
