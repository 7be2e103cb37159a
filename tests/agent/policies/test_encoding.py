"""What goes into a policy and what its state is made of: hashed columns, sealed bytes."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from armwise.agent.policies.base import PolicyError
from armwise.agent.policies.encoding import check_context, hash_features
from armwise.agent.policies.serialization import pack, seal, unpack, unseal
from armwise.feedback.events import Context

NAMED = st.dictionaries(st.text(max_size=8), st.integers(-9, 9).map(float), max_size=12)


@given(NAMED, st.integers(1, 16))
def test_hashing_adds_up_what_each_name_gives_alone(features: dict[str, float], dims: int) -> None:
    alone = np.array([hash_features({name: value}, dims) for name, value in features.items()]).reshape(
        -1, dims
    )
    assert hash_features(features, dims) == alone.sum(axis=0).tolist()
    assert np.abs(alone).sum() == sum(abs(value) for value in features.values())


def test_names_are_spread_over_all_columns_and_both_signs() -> None:
    columns = np.array([hash_features({f"w={i}": 1.0}, 8) for i in range(4000)])
    assert np.abs(columns).sum(axis=0) == pytest.approx(np.full(8, 500), abs=80)
    assert columns.sum(axis=0) == pytest.approx(np.zeros(8), abs=90)


def test_without_columns_named_features_are_left_out() -> None:
    assert hash_features({"long": 1.0}, 0) == []


def test_numbers_whose_sum_alone_is_not_finite_are_taken() -> None:
    huge = {"a": 1e308, "b": 1e308}
    check_context(Context("?", huge))
    check_context(Context("?", huge, (1e308,), {"bm25": huge, "dense": {"a": -1e308}}))
    for context, name in (
        (Context("?", huge | {"c": math.nan}), "feature 'c' is nan"),
        (Context("?", {"a": 1.0}, (0.0, math.nan)), "number 1 of the embedding is nan"),
        (Context("?", huge, (0.0, -math.inf)), "number 1 of the embedding is -inf"),
        (Context("?", huge, (), {"bm25": {"d": math.nan}, "dense": {"d": 1.0}}), "feature 'd' of arm 'bm25'"),
        (Context("?", huge, (), {"bm25": huge, "dense": {"d": math.nan}}), "feature 'd' of arm 'dense'"),
    ):
        with pytest.raises(PolicyError, match=name):
            check_context(context)


def test_a_body_is_told_apart_by_every_fact_about_who_made_it() -> None:
    state = seal({"kind": "a", "ridge": 1.0}, b"body")
    assert unseal(state, {"ridge": 1.0, "kind": "a"}) == b"body"
    for other in ({"kind": "b", "ridge": 1.0}, {"kind": "a", "ridge": 2.0}, {"kind": "a"}):
        with pytest.raises(PolicyError, match=r'state of \{"blake2b": .* is damaged, or not of \{"kind"'):
            unseal(state, other)
    with pytest.raises(PolicyError, match="state of nothing is damaged"):
        unseal(b"", {"kind": "a"})


def test_what_is_packed_is_unpacked_and_may_be_written_to() -> None:
    arrays = {"b": np.arange(6.0).reshape(2, 3), "a": np.array([3], dtype=np.int64), "none": np.zeros((0, 2))}
    body = pack({"arms": ["x\n", "y"]}, arrays)
    assert body == pack({"arms": ["x\n", "y"]}, dict(reversed(arrays.items())))
    facts, found = unpack(body)
    assert facts == {"arms": ["x\n", "y"]}
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert found[name].tolist() == array.tolist()
        found[name] += 1


def test_bytes_that_were_never_packed_are_refused() -> None:
    for body in (b"", b"{}", b"{}\nshort", b"[1\n" + bytes(20)):
        with pytest.raises(PolicyError, match="cannot be read"):
            unpack(body)
