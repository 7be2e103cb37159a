"""Build what a service needs before it starts: corpus, indexes, vectors, tables of the log; fill engines."""

from agent.config import AppConfig
from agent.routers import open_selector, saved
from arms.base import Progress
from arms.corpus import ingest
from arms.indexes import Vectors, build_once
from arms.llm import LateWriter
from arms.models import require_whole
from arms.retrievers import Resources, catalog
from arms.retrievers import prepare as prepare_arms
from feedback.log import open_log


def prepare(config: AppConfig, progress: Progress) -> None:
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
    corpus = ingest(config.corpus.source, config.corpus_path, compare=True, progress=progress)
    build_once.discard_damaged(config.indexes_path)
    write = LateWriter(config.llm)  # an index may be made of what it reads in the passages
    for point in points:
        resources = Resources(
            corpus, point.indexes_path, point.backbones, point.arms, write=write, open_selector=open_selector
        )
        prepare_arms(resources, progress=progress)
        catalog.fill_damaged(resources, progress)
        if point.router is not None:
            saved.warn_of_corpus(saved.read_about(point.router.path), corpus.digest)
        for name in saved.looked_at(point.router):
            backbone = point.backbones[name]
            Vectors.of(corpus, point.indexes_path, backbone).prepare(corpus, backbone, progress)


def fill(config: AppConfig, point: str, arm: str, progress: Progress) -> str:
    """Put the corpus into the engine of an arm, and return what was done. Raises ValueError, ArmError."""
    own = config.of(point).settled()
    corpus = ingest(own.corpus.source, own.corpus_path, progress=progress)
    done = catalog.fill(arm, Resources(corpus, own.indexes_path, own.backbones, own.arms), progress)
    return f"{done.written:,} passages written, {done.deleted:,} deleted; version {done.version}"
