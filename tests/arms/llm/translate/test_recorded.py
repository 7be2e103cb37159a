"""Recorded requests of real clients keep their texts in the other protocols.

    ARMWISE_EXCHANGES=exchanges.jsonl.gz pytest tests/arms/llm/translate/test_recorded.py

The file is that of `benchmarks/exchanges.py`, which also asks which requests no other protocol can take.
"""

import os
from pathlib import Path

import pytest

from armwise.arms.llm import Request
from benchmarks.exchanges import lost, pairs, read_exchanges
from benchmarks.exchanges_bodies import words_of

FILE = os.environ.get("ARMWISE_EXCHANGES", "")


@pytest.mark.skipif(not FILE, reason="ARMWISE_EXCHANGES names no file of recorded exchanges")
def test_recorded_requests_keep_their_texts() -> None:
    found = {
        (exchange.id, target): missing
        for exchange, target in pairs(read_exchanges(Path(FILE)), cross=True)
        if (
            missing := [
                *lost(
                    words_of(exchange.protocol, exchange.request),
                    words_of(target, Request(exchange.protocol, exchange.request).to(target)),
                )
            ]
        )
    }
    assert found == {}
