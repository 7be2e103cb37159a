"""Sums of the log by time and arm, from which pages are drawn: derived from the facts, and from nothing else.

rollups            one row an arm, a number of eligible arms and a stretch of time
rollup_positions   how far each reward rule's sums have read the log and its training log
"""

from sqlalchemy import BigInteger, Column, Double, Integer, String, Table

from feedback.log.tables import metadata

COUNTS = (
    *("decisions", "finished", "fell_back", "failed", "cancelled", "answers"),
    *("steps", "tokens", "rewarded"),
)
"""Columns of whole numbers."""

SUMS = (
    *("retrieval_s", "llm_s", "usd", "reward", "reward2"),
    *("w", "wr", "w2", "w2r", "w2r2"),
)
"""Columns of sums; `w` is 1 / propensity of the drawn arm, `r` the reward, and `2` a square."""

rollups = Table(
    "rollups",
    metadata,
    Column("width", Integer, primary_key=True, autoincrement=False),
    Column("start", BigInteger, primary_key=True, autoincrement=False),
    Column("arm", String(128), primary_key=True),
    Column("n_arms", Integer, primary_key=True, autoincrement=False),
    *(Column(name, BigInteger, nullable=False) for name in COUNTS),
    *(Column(name, Double, nullable=False) for name in SUMS),
)

rollup_positions = Table(
    "rollup_positions",
    metadata,
    Column("rule", String(64), primary_key=True),
    Column("log_seq", BigInteger, nullable=False),
    Column("examples_seq", BigInteger, nullable=False),
)
