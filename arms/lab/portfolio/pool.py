"""The pool of candidate arms for a portfolio: grids over families of arms, as data.

The defaults are the 360 arms of the paper, over any two backbones:

    dense       plain nearest neighbours                           1 per backbone
    discounted  14 gammas x 10 thresholds                        140 per backbone
    vendi       21 diversities                                    21 per backbone
    graph       3 numbers of hops x 3 frequencies x 2 sizes       18 per backbone

A name contains the parameters: `ds-mpnet-g0.4-r0.6`, `vendi-mpnet-s0.25`,
`graph-mpnet-h3-df100-c1000`, `dense-mpnet`; values that differ from the paper are appended,
`-d500`, `-ner`, `-ivf_pq`. A name is the same arm in every run, so that matrices can be
compared and a service can change its portfolio.
"""

from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from armwise.arms.base import check_name
from armwise.arms.models import Backbone, LocalModel
from armwise.arms.retrievers import ArmSpec
from armwise.arms.suggestions import did_you_mean, select_names

DEFAULT_DEPTH = 1000
"""Passages of a first stage by default; names omit this value."""

DECIMALS = 6
"""Decimals of a number in a grid, so that 3 * 0.1 is 0.3 in names."""


class PoolError(ValueError):
    """The description of a pool is invalid; the message says how to correct it."""


def _distinct(values: tuple[float, ...]) -> tuple[float, ...]:
    rounded = tuple(round(value, DECIMALS) for value in values)
    for value in rounded:
        if rounded.count(value) > 1:
            raise ValueError(f"{value:.10g} occurs in the grid twice")
    return rounded


NotNegative = Annotated[float, Field(ge=0.0)]

Share = Annotated[float, Field(ge=0.0, le=1.0)]

Count = Annotated[int, Field(ge=1)]

Gammas = Annotated[tuple[NotNegative, ...], AfterValidator(_distinct)]

Shares = Annotated[tuple[Share, ...], AfterValidator(_distinct)]

Counts = Annotated[tuple[Count, ...], AfterValidator(_distinct)]


class _Grid(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DiscountedGrid(_Grid):
    """Arms of kind `ds`: one for each pair of gamma and threshold."""

    gammas: Gammas = Field(
        default=(0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 4.0, 6.0, 8.0, 10.0),
        description="Values of `gamma`.",
    )
    thresholds: Shares = Field(
        default=tuple(tenths / 10 for tenths in range(10)),
        description="Values of `threshold`.",
    )
    depth: Count = Field(default=DEFAULT_DEPTH, description="Number of first-stage candidates.")


class VendiGrid(_Grid):
    """Arms of kind `vendi`: one for each diversity."""

    diversities: Shares = Field(
        default=tuple(twentieths / 20 for twentieths in range(21)),
        description="Values of `diversity`.",
    )
    depth: Count = Field(default=DEFAULT_DEPTH, description="Number of first-stage candidates.")


class GraphGrid(_Grid):
    """Arms of kind `graph`: one for each combination of values."""

    max_hops: Counts = Field(default=(1, 3, 5), description="Values of `max_hops`.")
    max_entity_df: Counts = Field(default=(100, 300, 500), description="Values of `max_entity_df`.")
    max_candidates: Counts = Field(default=(1000, 2000), description="Values of `max_candidates`.")
    ner: LocalModel | None = Field(
        default=None, description="`ner` of every arm: the spaCy pipeline that finds entities. Null: titles."
    )


class PoolSpec(_Grid):
    """The families of arms in a pool. Set a family to null to leave it out."""

    backbones: tuple[str, ...] = Field(
        default=("minilm", "mpnet"),
        min_length=1,
        description="Backbones of every family. By default, all backbones in the pool file.",
    )
    index: Literal["flat", "ivf_pq"] = Field(
        default="flat", description="Index of the first stage of every arm."
    )
    corpus: str | None = Field(default=None, description="Corpus that the arms search, if there are several.")
    dense: bool = Field(default=True, description="Whether to include a `dense` arm for each backbone.")
    discounted: DiscountedGrid | None = DiscountedGrid()
    vendi: VendiGrid | None = VendiGrid()
    graph: GraphGrid | None = GraphGrid()
    extra: dict[str, ArmSpec] = Field(
        default_factory=dict, description="Further arms by name. Their members may be any arms of the pool."
    )
    exclude: tuple[str, ...] = Field(
        default=(),
        description="Names of arms to leave out, with wildcards, such as `ds-*-g10-*`.",
    )

    @model_validator(mode="after")
    def _no_backbone_twice(self) -> "PoolSpec":
        for name in self.backbones:
            if self.backbones.count(name) > 1:
                raise ValueError(f"backbones: {name!r} occurs twice")
        return self


class PoolFile(_Grid):
    """A file with a pool and its backbones."""

    backbones: dict[str, Backbone] = Field(
        min_length=1,
        description=("Sentence encoders by name. They turn questions and passages into vectors."),
    )
    pool: PoolSpec

    @model_validator(mode="before")
    @classmethod
    def _all_backbones(cls, document: object) -> object:
        """Use all backbones of the file if the pool names none."""
        if not isinstance(document, Mapping) or not isinstance(document.get("backbones"), Mapping):
            return document
        pool = document.get("pool") or {}
        if not isinstance(pool, Mapping) or "backbones" in pool:
            return document
        return {**document, "pool": {**pool, "backbones": tuple(document["backbones"])}}

    @model_validator(mode="after")
    def _check_backbones(self) -> "PoolFile":
        for name in self.pool.backbones:
            if name not in self.backbones:
                raise ValueError(f"backbone {name!r} is not declared{did_you_mean(name, self.backbones)}")
        return self


def load_pool(path: Path) -> PoolFile:
    """Read a YAML file with the keys `backbones` and `pool`. Raises PoolError."""
    try:
        return PoolFile.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise PoolError(f"{path}: no such file; start with a copy of examples/pool.yaml") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise PoolError(f"{path}: {error}") from None
    except ValidationError as error:
        lines = (f"{path}: {_describe(problem['loc'], problem['msg'])}" for problem in error.errors())
        raise PoolError("\n".join(lines)) from None


def expand(pool: PoolSpec) -> dict[str, ArmSpec]:
    """Return every arm of a pool by name, family by family, extra arms last.

    Raises:
        PoolError: Two arms have the same name, a pattern matches no arm, or the pool is empty.

    >>> list(expand(PoolSpec(backbones=("a", "b"), discounted=None, vendi=None, graph=None)))
    ['dense-a', 'dense-b']
    """
    specs = {name: spec.model_copy(update={"corpus": pool.corpus}) for name, spec in _grids(pool)}
    excluded = set(select_names(specs, pool.exclude, "exclude: no arm of the grids", PoolError))
    kept = {name: spec for name, spec in specs.items() if name not in excluded}
    for name in pool.extra:
        if name in kept:
            raise PoolError(f"extra: {name!r} is already an arm of the grids; choose another name")
    for name in (*kept, *pool.extra):
        try:
            check_name(name)
        except ValueError as error:
            raise PoolError(str(error)) from None
    if not kept and not pool.extra:
        raise PoolError("the pool is empty: every family is null or excluded, and there is no extra arm")
    return {**kept, **pool.extra}


def _grids(pool: PoolSpec) -> Iterator[tuple[str, ArmSpec]]:
    for backbone in pool.backbones:
        base = {"backbone": backbone, "index": pool.index}
        kept = "" if pool.index == "flat" else f"-{pool.index}"
        if pool.dense:
            yield f"dense-{backbone}{kept}", ArmSpec(kind="dense", params=base)
        if pool.discounted is not None:
            for gamma, r in product(pool.discounted.gammas, pool.discounted.thresholds):
                params = {**base, "depth": pool.discounted.depth, "gamma": gamma, "threshold": r}
                name = f"ds-{backbone}-g{gamma:.10g}-r{r:.10g}{_depth(pool.discounted.depth)}{kept}"
                yield name, ArmSpec(kind="ds", params=params)
        if pool.vendi is not None:
            for s in pool.vendi.diversities:
                params = {**base, "depth": pool.vendi.depth, "diversity": s}
                name = f"vendi-{backbone}-s{s:.10g}{_depth(pool.vendi.depth)}{kept}"
                yield name, ArmSpec(kind="vendi", params=params)
        if pool.graph is not None:
            grid = pool.graph
            for hops, df, most in product(grid.max_hops, grid.max_entity_df, grid.max_candidates):
                params = {**base, "max_hops": hops, "max_entity_df": df, "max_candidates": most}
                name = f"graph-{backbone}-h{hops}-df{df}-c{most}"
                if grid.ner is not None:
                    params, name = {**params, "ner": grid.ner}, f"{name}-ner"
                yield f"{name}{kept}", ArmSpec(kind="graph", params=params)


def _depth(depth: int) -> str:
    """Return the part of a name for the depth of a first stage; empty for the default."""
    return "" if depth == DEFAULT_DEPTH else f"-d{depth}"


def _describe(place: tuple[int | str, ...], message: str) -> str:
    where = ".".join(map(str, place))
    problem = message.removeprefix("Value error, ")
    return f"{where}: {problem}" if where else problem
