"""A trained router in a folder: the router, the facts of its training, and its out-of-fold scores.

router.model   the bytes from `Router.save`
router.json    the facts of its training: what must be equal for it to serve, and its results
unseen.jsonl   its out-of-fold scores (`armwise.agent.routers.out_of_fold`)
relevance.model   the relevance of passages, if the router has columns of it (`armwise.arms.relevance`)
manifest.json  size and digest of each of these (`armwise.arms.manifest`)
"""

import hashlib
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from weakref import WeakValueDictionary

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from armwise.agent.file_errors import describe_file_error
from armwise.agent.routers.base import Router
from armwise.agent.routers.catalog import load_router
from armwise.agent.routers.dataset import RouterError, Stage
from armwise.arms import manifest
from armwise.arms.llm import prompts
from armwise.arms.manifest import DamagedFileError
from armwise.arms.models import Backbone, ModelNotFoundError, digest_backbone
from armwise.arms.relative_paths import LocalPath
from armwise.arms.relevance import RelevanceError, RelevanceModel, read_model, write_model
from armwise.arms.suggestions import did_you_mean

logger = logging.getLogger(__name__)

MODEL, ABOUT = "router.model", "router.json"

AGAIN = "train it again (`armwise lab train`)"

_LOADED: WeakValueDictionary[str, Router] = WeakValueDictionary()
"""Cache of routers in use, by digest: configurations are checked often, and loading may take seconds."""


class RouterConfig(BaseModel):
    """A trained router, whose score of an arm is the feature `router` of that arm."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: LocalPath = Field(description="Folder that `armwise lab train` wrote.")

    def check(self, backbones: Mapping[str, Backbone], arms: Collection[str], *, has_fit: bool) -> None:
        """Check that the router can be read, and fits the rest of the configuration.

        Args:
            backbones: Declared backbones, by name.
            arms: The live arms.
            has_fit: Whether `features.similarity` is set.

        Raises:
            RouterError: The router cannot be read, or does not fit.
        """
        try:
            read_trained(self.path).check(backbones, arms, has_fit=has_fit)
        except RouterError as error:
            raise RouterError(f"router: {error}") from None


class RouterFacts(BaseModel):
    """The facts of a router's training.

    Attributes:
        format: Version of the folder.
        kind: Kind of the router.
        params: Arguments of its class.
        stage: Stage of the features that it needs.
        digest: Digest of the router's file.
        arms: Arms that it was fitted on.
        backbone: Name of the sentence encoder of its embeddings.
        encoder: Digest of that encoder.
        query_prefix: Prefix of each question when it was embedded.
        k: Passages of each arm that its features are computed from; 0: it reads the question alone.
        corpus: Digest of the corpus of these passages.
        relevance: Digest of the relevance model in the same folder, if it has columns of relevance.
        writing: How the answers that it compares were written, if it compares answers and this is known.
        utility: The utility in its labels.
        quality: Score of the retrieved passages in its labels, if they have one.
        inputs: Digests of the files that it was trained on, by path.
        questions: Number of training questions.
        held_out: Results on held-out questions, if it was evaluated.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    kind: str
    params: dict[str, Any]
    stage: str
    digest: str
    arms: tuple[str, ...]
    backbone: str
    encoder: str
    query_prefix: str
    k: int = Field(ge=0)
    corpus: str | None
    relevance: str | None = None
    writing: prompts.Writing | None = None
    utility: dict[str, Any]
    quality: str | None = None
    inputs: dict[str, str]
    questions: int
    held_out: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Trained:
    """A fitted router, the facts of its training, and its relevance model, if it has one."""

    router: Router
    about: RouterFacts
    relevance: RelevanceModel | None = None

    def check(self, backbones: Mapping[str, Backbone], arms: Collection[str], *, has_fit: bool) -> None:
        """Check that the router can score these arms, with the same features as in its training.

        Args:
            backbones: Declared backbones, by name.
            arms: The live arms.
            has_fit: Whether `features.similarity` is set.

        Raises:
            RouterError: It compares answers, it reads how well a question fits and that is unknown, its
                backbone is missing or differs, or it knows none of the arms.
        """
        about = self.about
        if self.router.stage is Stage.ANSWERED:
            raise RouterError(
                f"router {about.kind!r} compares answers, which no arm has given before one is drawn: "
                "train one of stage question or retrieved, or name this one in an arm of kind ensemble"
            )
        if self.router.reads_fit and not has_fit:
            raise RouterError(
                f"router {about.kind!r} reads how well a question fits each source: add "
                "`features: {similarity: {}}`"
            )
        if about.backbone not in backbones:
            hint = did_you_mean(about.backbone, backbones)
            raise RouterError(f"it was trained on backbone {about.backbone!r}, which is not declared{hint}")
        self.check_encoder(backbones[about.backbone])
        if not set(arms) & set(about.arms):
            raise RouterError(f"it knows {', '.join(about.arms)}, and none of {', '.join(arms)}")

    def check_encoder(self, backbone: Backbone) -> None:
        """Check that a backbone is the one of its training. Raises RouterError."""
        about = self.about
        try:
            encoder = digest_backbone(backbone)
        except ModelNotFoundError as error:
            raise RouterError(f"backbone {about.backbone!r}: {error}") from None
        facts = {"model": (about.encoder, encoder), "prefix": (about.query_prefix, backbone.query_prefix)}
        for what, (trained, here) in facts.items():
            if trained != here:
                raise RouterError(
                    f"it was trained on another backbone {about.backbone!r}: its {what} is {here!r} here "
                    f"and was {trained!r}"
                )


def write_trained(folder: Path, trained: Trained) -> None:
    """Write a router and the facts of its training, replacing another one in the folder."""
    about = orjson.dumps(trained.about.model_dump(mode="json"), option=orjson.OPT_INDENT_2)
    write_files(folder, {MODEL: trained.router.save(), ABOUT: about})
    if trained.relevance is not None:
        write_model(folder, trained.relevance)


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files in order, each atomically, replacing existing ones.

    The digests come last, so that a folder with only some of the new files is reported as damaged.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        unfinished = folder / f".{name}.part"
        unfinished.write_bytes(content)
        unfinished.replace(folder / name)
    manifest.add(folder, files)


def find_passage_backbone(config: RouterConfig | None) -> frozenset[str]:
    """Return the backbone whose vectors of passages a router reads, empty if none. Raises RouterError."""
    about = None if config is None else read_about(config.path)
    return frozenset({about.backbone} if about is not None and about.k else ())


def warn_of_unknown(about: RouterFacts, arms: Iterable[str]) -> None:
    """Log a warning that names the live arms that are missing from a router's training."""
    if unknown := [arm for arm in arms if arm not in about.arms]:
        logger.warning("the router was not trained on %s: it gives them no score", ", ".join(unknown))


def warn_of_corpus(about: RouterFacts, digest: str) -> None:
    """Log a warning if a router that uses passages was trained on another corpus."""
    if about.corpus is not None and about.corpus != digest:
        logger.warning(
            "the router was trained on what arms found in corpus %s, and this one is %s: its scores may be "
            "worth less; train it again",
            about.corpus,
            digest,
        )


def read_about(folder: Path) -> RouterFacts:
    """Read the facts of a router's training, without the router. Raises RouterError."""
    try:
        return RouterFacts.model_validate_json(read_file(folder, ABOUT))
    except OSError as error:
        why = f"{ABOUT}: {describe_file_error(error)}"
        raise RouterError(
            f"{folder} holds no trained router: {why}; `armwise lab train` writes one"
        ) from None
    except ValidationError as error:
        first = error.errors()[0]
        what = ": ".join([*map(str, first["loc"]), first["msg"]])
        raise RouterError(f"{folder / ABOUT} is damaged, or of another version: {what}; {AGAIN}") from None


def read_file(folder: Path, name: str) -> bytes:
    """Return the content of a file of a trained model, compared with the manifest of its folder.

    Raises:
        RouterError: The file is damaged; the message has the command that trains the model again.
        OSError: The file cannot be read.
    """
    try:
        return manifest.read(folder.expanduser(), name)
    except DamagedFileError as error:
        raise RouterError(f"{folder}: {error}; {AGAIN}") from None


def read_trained(folder: Path) -> Trained:
    """Read a router.

    Raises:
        RouterError: The router is missing, damaged, of another version, differs from `router.json`, or lacks
            a model or a library that it needs.
    """
    about = read_about(folder)
    try:
        saved = read_file(folder, MODEL)
    except OSError as error:
        why = f"{MODEL}: {describe_file_error(error)}"
        raise RouterError(f"{folder} holds no trained router: {why}; {AGAIN}") from None
    return load_trained(about, saved, str(folder / MODEL), _relevance(folder, about))


def load_trained(
    about: RouterFacts, saved: bytes, where: str, relevance: RelevanceModel | None = None
) -> Trained:
    """Load a router from its bytes, and check them against the facts of its training.

    Args:
        about: The facts of its training.
        saved: The bytes from `Router.save`.
        where: Name of the router in messages.
        relevance: Relevance model of the router.

    Raises:
        RouterError: See `read_trained`.
    """
    check_digest(saved, about.digest, where)
    try:
        router = _LOADED.get(about.digest) or load_router(saved)
    except (RouterError, ModelNotFoundError, ModuleNotFoundError) as error:
        raise RouterError(f"{where}: {error}") from None
    _LOADED[about.digest] = router
    return Trained(router, about, relevance)


def _relevance(folder: Path, about: RouterFacts) -> RelevanceModel | None:
    """Read the relevance model of a router, if it has one. Raises RouterError."""
    if about.relevance is None:
        return None
    try:
        model = read_model(folder)
    except (RelevanceError, ModuleNotFoundError) as error:
        raise RouterError(str(error)) from None
    if (digest := digest_router(model.save())) != about.relevance:
        raise RouterError(
            f"{folder} holds another model of relevance than its router was trained with: its digest is "
            f"{digest}, not {about.relevance}; {AGAIN}"
        )
    return model


def check_digest(saved: bytes, digest: str | None, where: str) -> None:
    """Check the bytes of a router against the digest in its manifest. Raises RouterError."""
    if (actual := digest_router(saved)) != digest:
        raise RouterError(f"{where} is damaged: its digest is {actual}, not {digest}; {AGAIN}")


def digest_router(saved: bytes) -> str:
    """Return the digest of a saved router."""
    return hashlib.blake2b(saved, digest_size=16).hexdigest()
