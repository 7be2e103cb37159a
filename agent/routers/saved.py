"""A trained router in a folder: the router itself, and what it was trained on and found to be worth.

router.model   what `Router.save` returned
router.json    what must be the same where it is asked, and what people want to know of it
unseen.jsonl   what it would have said of the questions that it was trained on (`agent.routers.out_of_fold`)
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

from agent.routers.base import Router
from agent.routers.catalog import load_router
from agent.routers.dataset import RouterError, Stage
from arms.llm import prompts
from arms.models import Backbone, ModelNotFoundError, digest_backbone
from arms.suggestions import did_you_mean

logger = logging.getLogger(__name__)

MODEL, ABOUT = "router.model", "router.json"

_IN_USE: WeakValueDictionary[str, Router] = WeakValueDictionary()
"""Routers that somebody holds, by digest: a configuration is checked often, and loading may take seconds."""


class RouterConfig(BaseModel):
    """A trained router: its score of an arm is a feature of that arm, called `router`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: Path = Field(description="Folder that `armwise train` wrote.")
    k: int | None = Field(
        default=None,
        ge=1,
        description="Passages of each arm that a router which looks at what was retrieved sees; "
        "null is as many as it was trained on.",
    )

    def settled(self) -> "RouterConfig":
        """Return the same with the path as it is on this machine."""
        return self.model_copy(update={"path": self.path.expanduser().absolute()})

    def check(self, backbones: Mapping[str, Backbone], arms: Collection[str]) -> None:
        """Refuse a router that cannot be read, or does not fit the rest of the configuration.

        Args:
            backbones: Those that are declared, by name.
            arms: The live arms.

        Raises:
            RouterError: Saying why.
        """
        try:
            read_trained(self.path).check(backbones, arms)
        except RouterError as error:
            raise RouterError(f"router: {error}") from None


class About(BaseModel):
    """What a router was trained on, and what that was worth.

    Attributes:
        format: Version of the folder.
        kind: Of the router.
        params: What it was built with.
        stage: How far a question must have come before it can be asked.
        digest: Of its file.
        arms: Those that it knows.
        backbone: Name of the sentence encoder whose embeddings it looks at.
        encoder: Digest of that encoder.
        query_prefix: What was put before each question.
        k: Passages of each arm that it was shown; 0 where it looks at the question alone.
        corpus: Digest of the corpus that they are of; None likewise.
        writing: How the answers that it compares were written; None where it compares none, or nobody knows.
        utility: What its labels were made by.
        inputs: Digests of the files that it was trained on, by their paths.
        questions: How many there were.
        held_out: What it was worth on questions that it was not fitted to; None where nobody looked.
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
    writing: prompts.Writing | None = None
    utility: dict[str, Any]
    inputs: dict[str, str]
    questions: int
    held_out: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Trained:
    """A fitted router, and what is told of it."""

    router: Router
    about: About

    def check(self, backbones: Mapping[str, Backbone], arms: Collection[str]) -> None:
        """Refuse to choose one of these arms by it where it would see something else than it was fitted to.

        Raises:
            RouterError: It compares answers, its backbone is missing or another, or it knows no arm.
        """
        about = self.about
        if self.router.stage is Stage.ANSWERED:
            raise RouterError(
                f"router {about.kind!r} compares answers, which no arm has given before one is drawn: "
                "train one of stage question or retrieved, or name this one in an arm of kind ensemble"
            )
        if about.backbone not in backbones:
            hint = did_you_mean(about.backbone, backbones)
            raise RouterError(f"it was trained on backbone {about.backbone!r}, which is not declared{hint}")
        self.check_encoder(backbones[about.backbone])
        if not set(arms) & set(about.arms):
            raise RouterError(f"it knows {', '.join(about.arms)}, and none of {', '.join(arms)}")

    def check_encoder(self, backbone: Backbone) -> None:
        """Refuse another backbone than it was trained on. Raises RouterError."""
        about = self.about
        try:
            encoder = digest_backbone(backbone)
        except ModelNotFoundError as error:
            raise RouterError(f"backbone {about.backbone!r}: {error}") from None
        told = {"model": (about.encoder, encoder), "prefix": (about.query_prefix, backbone.query_prefix)}
        for what, (trained, here) in told.items():
            if trained != here:
                raise RouterError(
                    f"it was trained on another backbone {about.backbone!r}: its {what} is {here!r} here "
                    f"and was {trained!r}"
                )


def write_trained(folder: Path, trained: Trained) -> None:
    """Write a router and what is told of it; what the folder held of another one is replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    told = orjson.dumps(trained.about.model_dump(mode="json"), option=orjson.OPT_INDENT_2)
    for name, content in ((MODEL, trained.router.save()), (ABOUT, told)):
        unfinished = folder / f".{name}.part"
        unfinished.write_bytes(content)
        unfinished.replace(folder / name)


def looked_at(config: RouterConfig | None) -> frozenset[str]:
    """Name the backbones by which a router looks at passages: one, or none. Raises RouterError."""
    about = None if config is None else read_about(config.path)
    return frozenset({about.backbone} if about is not None and about.k else ())


def warn_of_unknown(about: About, arms: Iterable[str]) -> None:
    """Name those of the live arms that a router does not know."""
    if unknown := [arm for arm in arms if arm not in about.arms]:
        logger.warning("the router was not trained on %s: it gives them no score", ", ".join(unknown))


def warn_of_corpus(about: About, digest: str) -> None:
    """Say so where a router that looks at passages was trained on those of another corpus."""
    if about.corpus is not None and about.corpus != digest:
        logger.warning(
            "the router was trained on what arms found in corpus %s, and this one is %s: its scores may be "
            "worth less; train it again",
            about.corpus,
            digest,
        )


def read_about(folder: Path) -> About:
    """Read what is told of a router, without the router. Raises RouterError."""
    try:
        return About.model_validate_json((folder.expanduser() / ABOUT).read_bytes())
    except OSError as error:
        raise RouterError(f"{folder} holds no trained router: {error}; `armwise train` writes one") from None
    except ValidationError as error:
        first = error.errors()[0]
        what = ": ".join([*map(str, first["loc"]), first["msg"]])
        raise RouterError(f"{folder / ABOUT} is damaged, or of another version: {what}") from None


def read_trained(folder: Path) -> Trained:
    """Read a router.

    Raises:
        RouterError: It is missing, damaged, of another version, not the one that is described, or a model
            that it needs is missing.
    """
    about = read_about(folder)
    try:
        saved = (folder.expanduser() / MODEL).read_bytes()
    except OSError as error:
        raise RouterError(f"{folder} holds no trained router: {error}") from None
    if (digest := digest_of(saved)) != about.digest:
        raise RouterError(f"{folder / MODEL} is damaged: its digest is {digest}, not {about.digest}")
    try:
        router = _IN_USE.get(digest) or load_router(saved)
    except (RouterError, ModelNotFoundError) as error:
        raise RouterError(f"{folder / MODEL}: {error}") from None
    _IN_USE[digest] = router
    return Trained(router, about)


def digest_of(saved: bytes) -> str:
    """Return the digest of a saved router."""
    return hashlib.blake2b(saved, digest_size=16).hexdigest()
