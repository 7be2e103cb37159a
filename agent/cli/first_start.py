"""The first start: a service answers as soon as passages are read, and what takes longer is built behind it.

    passages, indexes of words --> the service answers by the arms that need no encoder
    vectors                    --> all arms enter, in place of their parts

The service does its first warm start once all arms are there.

The live arms are in the log, as they always are: policy, replay and `verify` see which arms there were. A
run that was stopped is continued by the next `armwise serve`, which finds its last set in `UNDER_WAY`; a home
in which anything else was served is left alone.
"""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

from armwise.agent.cli.console import (
    PLAIN,
    ProgressCallback,
    console,
    errors,
    message_lines,
    print_left_out,
    progress,
)
from armwise.agent.cli.preparation import NotBuiltError, look, open_readable, prepare, suggest_question
from armwise.agent.config import AppConfig, ConfigError, parse
from armwise.agent.low_priority import read_task
from armwise.agent.reporting import log_plainly
from armwise.agent.run_folder import QUESTION, RUN_FOLDER, UNDER_WAY, BuildingProgress
from armwise.arms.models import Embedder, build_embedder
from armwise.arms.retrievers import ArmGraph, ArmSpec
from armwise.feedback.log import Store, open_log
from armwise.feedback.registry import arm_sets


def entering(arms: Mapping[str, ArmSpec]) -> list[str]:
    """Return the names of the arms that are live while others are built.

    In place of an action that needs an encoder are its members that need none, such as the words of a search
    by words and vectors.
    """
    graph = ArmGraph(arms)
    actions = (name for name, spec in arms.items() if spec.action)
    live = [
        part
        for action in actions
        for part in ([action] if _is_quick(action, graph) else graph.closure(action))
    ]
    return list(dict.fromkeys(part for part in live if _is_quick(part, graph)))


def _is_quick(name: str, graph: ArmGraph) -> bool:
    """Return whether an arm can search as soon as passages are read."""
    return graph.is_light(name) and not _reads_model(name, graph)


def _reads_model(name: str, graph: ArmGraph) -> bool:
    parts = map(graph.resolve, graph.closure(name))
    return any(kind.models(params) or kind.encoders(params) for kind, params in parts)


def begin(config: AppConfig, on_progress: ProgressCallback) -> bool:
    """Build what the service needs for its first answer, and make these arms live; return whether it was.

    False, and nothing is live, where all has to be built before: not a first start, a router in the
    configuration, no arm without an encoder, or with one, or nothing that is missing.

    Args:
        config: The configuration.
        on_progress: Progress callback.
    """
    config = config.resolve_places()
    live, graph = entering(config.arms), ArmGraph(config.arms)
    searches = any(config.arms[name].kind != "none" for name in live)
    waits = any(_reads_model(name, graph) for name in config.actions)
    if config.router is not None or not searches or not waits:
        return False
    try:
        first = config.with_arms(live)
    except ConfigError:  # a setting names an arm that is not live yet, such as `fallback`
        return False
    with closing(open_log(config.database_url, config.reward)) as store:
        before = arm_sets.live(store)
        if before is not None and before.seq != _read_last(config):
            return False
    with suppress(NotBuiltError):
        prepare(config, look)
        return False  # all is built
    with closing(Store(config.database_url)) as store, ThreadPoolExecutor(1) as exporter:
        embedding, exported = config.features.embedding, list[Future[Embedder]]()
        if embedding is not None:  # decisions need it; its model is exported while passages are read
            exported.append(exporter.submit(build_embedder, config.backbones[embedding.backbone]))
        similarity = first.features.similarity  # samples are embedded later, words count at once
        if similarity is not None:
            similarity = similarity.model_copy(update={"backbone": None, "searches": 0})
        features = first.features.model_copy(update={"similarity": similarity})
        parts = ArmGraph(first.arms).closure(*live)
        prepare(first.model_copy(update={"arms": parts, "features": features}), on_progress)
        for future in exported:
            future.result()
        if before is None:
            _make_live(store, live, config)
    return True


def build_service(settings: AppConfig, on_progress: ProgressCallback, folder: Path | None) -> None:
    """Build what is missing, and write what the other processes of a run read.

    Args:
        settings: The configuration, which was checked.
        on_progress: Progress callback; `look` to build nothing that takes long.
        folder: The folder of the run; None: of no run, and all is built.

    Raises:
        NotBuiltError: By `look`.
        ConfigError, ArmError, StoreError, ModelNotFoundError: What is configured cannot be served.
    """
    if folder is not None and begin(settings, on_progress):
        BuildingProgress(folder)("waiting for the service")
    else:
        prepare(settings, on_progress)
    sources = settings.resolve_places().corpus_sources
    print_left_out(open_readable(sources))
    if folder is not None:
        (folder / QUESTION).write_text(suggest_question(sources), encoding="utf-8")


def _read_last(config: AppConfig) -> int | None:
    """Return the position of the last set of arms of a first start; None where none is under way."""
    try:
        return int((config.home_path / UNDER_WAY).read_text(encoding="ascii"))
    except (FileNotFoundError, ValueError):  # what a full disk has cut off is no position
        return None


def _make_live(store: Store, names: Sequence[str], config: AppConfig) -> None:
    """Make arms live, and keep that it was done here."""
    made = arm_sets.replace(store, names, config.arm_documents)
    (config.home_path / UNDER_WAY).write_text(str(made.seq), encoding="ascii")


def follow() -> None:
    """Build what is left, and let all arms enter: in a child of the service, which reads why it fails."""
    config, folder = parse(read_task()), os.environ.get(RUN_FOLDER)
    report = (lambda *_: None) if folder is None else BuildingProgress(Path(folder))
    log_plainly()
    try:
        with progress(errors) as shown:

            def on_progress(what: str, done: int, total: int | None) -> None:
                report(what, done, total)
                shown(what, done, total)

            enter(config, on_progress)
    except Exception as error:
        console.print(" ".join(message_lines(error)) or type(error).__name__, **PLAIN)
        raise SystemExit(1) from error


def enter(config: AppConfig, on_progress: ProgressCallback) -> bool:
    """Build all that is missing, and make every arm live.

    Returns:
        Whether all are live; False where the arms were replaced by others meanwhile, which are left alone.
    """
    prepare(config, on_progress)
    with closing(Store(config.database_url)) as store:
        live = arm_sets.live(store)
        if ours := live is not None and live.seq == _read_last(config):
            _make_live(store, list(config.actions), config)
            errors.print(f"Arms now: {', '.join(sorted(config.actions))}", **PLAIN)
        else:
            errors.print("The arms were replaced in the meantime, and stay as they are", **PLAIN)
    (config.home_path / UNDER_WAY).unlink(missing_ok=True)
    return ours
