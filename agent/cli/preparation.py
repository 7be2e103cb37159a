"""What is built before a service answers: the log, the corpus, the indexes, the default models."""

from armwise.agent.cli.console import PLAIN, ProgressCallback, console
from armwise.agent.config import AppConfig
from armwise.agent.routers import saved
from armwise.agent.wings import OPEN_SELECTOR, load
from armwise.arms.corpus import ingest_all
from armwise.arms.indexes import build_once, prepare_vectors
from armwise.arms.llm import LateWriter, catalog
from armwise.arms.models import bundled, require_whole
from armwise.arms.retrievers import Resources, fill_damaged_collections, prepare_profiles
from armwise.arms.retrievers import prepare as prepare_arms
from armwise.feedback.log import open_log


def install_missing_models(settings: AppConfig) -> None:
    """Install the default models where one that is configured is missing. Raises ModelNotFoundError."""
    models = {backbone.model for point in settings.by_point.values() for backbone in point.backbones.values()}
    models |= {spec.model for spec in settings.models.values() if isinstance(spec, catalog.EmbeddedSpec)}
    if bundled.missing(models):
        console.print("installing the default models (175 MB)", **PLAIN)
        bundled.install()


def prepare(config: AppConfig, progress: ProgressCallback) -> None:
    """Open the log; ingest the corpus and build the indexes, where they are missing or damaged.

    All their files are compared with their digests here, once before a service starts; its processes compare
    sizes.
    """
    config = config.settled()
    points = config.by_point.values()
    config.privacy.redactor()
    for point in points:
        open_log(point.database_url, point.reward).close()  # what is wrong with a log is reported at once
    require_whole({backbone.model for point in points for backbone in point.backbones.values()})
    corpus = ingest_all(config.corpus_sources, compare=True, progress=progress)
    build_once.discard_damaged(config.indexes_path)
    open_selector = load(OPEN_SELECTOR)
    write = LateWriter(config.llm)  # an index may be made of what it reads in the passages
    for point in points:
        resources = Resources(
            corpus,
            point.indexes_path,
            point.backbones,
            point.arms,
            write=write,
            open_selector=open_selector,
        )
        prepare_arms(resources, progress=progress)
        fill_damaged_collections(resources, progress)
        if (similarity := point.features.similarity) is not None:
            prepare_profiles(point.arms, similarity, resources, progress)
        if point.router is not None:
            saved.warn_of_corpus(saved.read_about(point.router.path), corpus.digest)
        for name in saved.looked_at(point.router):
            prepare_vectors(corpus, point.indexes_path, point.backbones[name], progress)
