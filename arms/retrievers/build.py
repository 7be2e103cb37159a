"""Build arms, and the indexes that they search."""

from collections.abc import Iterable, Sequence
from functools import cache

from armwise.arms.base import Arm, ArmBuildError, Progress
from armwise.arms.extras import describe_missing
from armwise.arms.models import ModelNotFoundError
from armwise.arms.retrievers.arm_graph import ArmGraph
from armwise.arms.retrievers.kind import ReadVersion, Resources
from armwise.arms.retrievers.priced import PricedArm
from armwise.arms.retrievers.versioned import VersionedArm


def prepare(
    resources: Resources, names: Iterable[str] | None = None, progress: Progress | None = None
) -> None:
    """Build the missing indexes of arms.

    Args:
        resources: The resources of the arms.
        names: The arms, whose members are prepared too; None: all arms.
        progress: Progress callback.

    Raises:
        ArmSpecError: An arm is unknown or misdescribed.
        ArmBuildError: A library of its kind is not installed.
        ModelNotFoundError: The model of a backbone cannot be found.
    """
    graph = ArmGraph(resources.specs)
    graph.validate(resources.backbones, resources.corpus.names)
    for name, spec in graph.closure(*(graph.specs if names is None else names)).items():
        kind, params = graph.resolve(name)
        _require_libraries(name, spec.kind, kind.libraries)
        kind.prepare(params, resources.select_corpus(spec), progress)


def _require_libraries(name: str, kind: str, libraries: Sequence[str]) -> None:
    """Raise ArmBuildError if a library of a kind is not installed."""
    if missing := describe_missing(libraries):
        raise ArmBuildError(f"arm {name!r} of kind {kind!r}: {missing}")


def build_arm(name: str, resources: Resources) -> Arm:
    """Build an arm from its index.

    Raises:
        ArmSpecError: The arm is unknown, or the user's class is not an arm.
        ArmBuildError: A library of its kind, or of a member's, is not installed.
        ModelNotFoundError: A model that it loads cannot be found; the message has the key of the arm.
        IndexMismatchError: Its index is missing: call `prepare` first.
    """
    graph = ArmGraph(resources.specs)

    @cache  # shared members are built once
    def build(name: str) -> Arm:
        spec, (kind, params) = graph.spec(name), graph.resolve(name)
        _require_libraries(name, spec.kind, kind.libraries)
        try:
            arm: Arm = kind.build(name, params, resources.select_corpus(spec), build)
        except ModelNotFoundError as error:
            raise ModelNotFoundError(f"arms.{name}: {error}") from error
        return PricedArm(arm, spec.usd) if spec.usd else arm

    return build(name)


def build_versioned(name: str, resources: Resources) -> VersionedArm:
    """Build an arm, with the version of all that it and its members search. Raises as `build_arm`."""
    graph = ArmGraph(resources.specs)
    parts: list[ReadVersion] = []
    for part, spec in graph.closure(name).items():
        kind, params = graph.resolve(part)
        parts.append(kind.version_reader(params, resources.select_corpus(spec)))
    return VersionedArm(build_arm(name, resources), parts)
