"""Reading questions: what is kept, and how bad files are named."""

import gzip
from pathlib import Path

import pytest

from armwise.agent.lab.simulation.questions import QuestionsError, SimulatedQuestion, load_questions, shuffle

GOOD = '{"id": "q1", "question": "Who?", "answers": ["Ada"], "gold_ids": ["p1"], "dataset": "nq", "level": 3}'


def test_plain_and_compressed_files_read_the_same(tmp_path: Path) -> None:
    text = f'{GOOD}\n\n{{"id": "q2", "question": "Wo?", "type": "place"}}\n'
    (tmp_path / "q.jsonl").write_text(text)
    with gzip.open(tmp_path / "q.jsonl.gz", "wt") as file:
        file.write(text)
    plain = load_questions(tmp_path / "q.jsonl")
    assert plain == load_questions(tmp_path / "q.jsonl.gz")
    assert plain[0] == SimulatedQuestion(
        id="q1", question="Who?", answers=("Ada",), gold_ids=("p1",), dataset="nq"
    )
    assert [question.group for question in plain] == ["nq", "place"]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("{", r"line 2, is not a question: Invalid JSON"),
        ('{"id": "q2"}', r"line 2, is not a question: question: Field required; expected \{"),
        ('{"id": "q2", "question": "Who?", "answers": "Ada"}', r"line 2, is not a question: answers: "),
        ('{"id": "", "question": "Who?"}', r"line 2, is not a question: id: "),
        ('{"id": "q1", "question": "Who?"}', r"line 2: id 'q1' was already given in line 1"),
    ],
)
def test_a_bad_line_is_named_by_number(tmp_path: Path, bad: str, message: str) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text(f"{GOOD}\n{bad}\n")
    with pytest.raises(QuestionsError, match=message):
        load_questions(path)


def test_a_file_that_is_missing_empty_or_not_compressed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(QuestionsError, match=r"cannot read questions from .*none\.jsonl: .*No such file"):
        load_questions(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n\n")
    with pytest.raises(QuestionsError, match=r"empty\.jsonl holds no question; expected lines like"):
        load_questions(tmp_path / "empty.jsonl")
    (tmp_path / "plain.gz").write_text(GOOD)
    with pytest.raises(QuestionsError, match="cannot read questions"):
        load_questions(tmp_path / "plain.gz")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(GOOD.encode() * 50)[:40])
    with pytest.raises(QuestionsError, match="cannot read questions"):
        load_questions(tmp_path / "cut.gz")


def test_a_seed_stands_for_one_order_of_all_questions() -> None:
    questions = [SimulatedQuestion(id=str(i), question="?") for i in range(50)]
    assert shuffle(questions, seed=1) == shuffle(questions, seed=1)
    assert shuffle(questions, seed=1) != shuffle(questions, seed=2)
    assert sorted(shuffle(questions, seed=1), key=lambda q: int(q.id)) == questions
