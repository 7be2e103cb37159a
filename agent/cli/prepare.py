"""Build what a service needs before it starts: corpus, indexes, vectors, tables of the log."""

from agent.config import AppConfig
from agent.routers import open_selector, saved
from arms.base import Progress
from arms.corpus import ingest
from arms.indexes import Vectors
from arms.llm import LateWriter
from arms.retrievers import Resources
from arms.retrievers import prepare as prepare_arms
from feedback.log import open_log


def prepare(config: AppConfig, progress: Progress) -> None:
    """Open the log; ingest the corpus and build the indexes, where they are not there yet."""
    config = config.settled()
    open_log(config.database_url, config.reward).close()  # what is wrong with the log is reported at once
    corpus = ingest(config.corpus.source, config.corpus_path, progress=progress)
    write = LateWriter(config.llm)  # an index may be made of what it reads in the passages
    resources = Resources(
        corpus, config.indexes_path, config.backbones, config.arms, write=write, open_selector=open_selector
    )
    prepare_arms(resources, progress=progress)
    if config.router is not None:
        saved.warn_of_corpus(saved.read_about(config.router.path), corpus.digest)
    for name in saved.looked_at(config.router):
        backbone = config.backbones[name]
        Vectors.of(corpus, config.indexes_path, backbone).prepare(corpus, backbone, progress)
