"""A reply that is constructed to be sent is the model that a client reads."""

import copy
import pickle

import pytest

from armwise.agent.replies import AnswerMessage, FeedbackReceipts, Passage, construct


def test_a_constructed_reply_is_equal_to_the_validated_one() -> None:
    fields = {"id": "p1", "title": "T", "text": "x", "score": 0.5, "metadata": {"year": 2024}}
    made, read = construct(Passage, **fields), Passage.model_validate(fields)
    assert made == read
    assert made != construct(Passage, **{**fields, "score": 0.25})
    assert made.model_dump_json() == read.model_dump_json()
    assert [copy.deepcopy(made), made.model_copy(), pickle.loads(pickle.dumps(made))] == [made] * 3


def test_a_constructed_reply_has_the_fields_that_were_given_alone() -> None:
    made = construct(AnswerMessage, role="assistant", content=None)
    assert made.model_fields_set == {"role", "content"}
    assert made.model_dump(exclude_unset=True) == {"role": "assistant", "content": None}


def test_a_constructed_reply_refuses_a_name_that_it_does_not_have() -> None:
    with pytest.raises(AttributeError, match="'FeedbackReceipts' object has no attribute 'rows'"):
        getattr(construct(FeedbackReceipts, items=[]), "rows")  # noqa: B009 - a type checker would refuse it
