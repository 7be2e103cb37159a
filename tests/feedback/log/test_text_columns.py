"""Every column of texts says what an erasure makes of it, and the page says the same."""

from pathlib import Path

import pytest
import sqlalchemy as sa

from armwise.feedback.log import tables as t
from armwise.feedback.log import text_columns
from armwise.feedback.log.text_columns import COLUMNS, FILES, Fate

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "texts.md"


def test_every_column_of_texts_documents_or_bytes_has_a_row() -> None:
    found = {
        f"{table.name}.{column.name}"
        for table in t.metadata.tables.values()
        for column in table.c
        if isinstance(column.type, sa.String | sa.JSON | sa.LargeBinary)
    }
    assert {"decisions.question", "keys.name", "rollups.arm", "checkpoints.state"} <= found
    assert found - COLUMNS.keys() == set(), "say in `COLUMNS` what an erasure makes of a new column"
    assert COLUMNS.keys() - found == set(), "there is no such column"


@pytest.mark.parametrize("name", [*COLUMNS, *FILES])
def test_what_stays_has_a_reason(name: str) -> None:
    place = {**COLUMNS, **FILES}[name]
    assert place.holds
    assert place.why or place.fate in (Fate.OVERWRITTEN, Fate.NONE)


def test_the_page_is_that_of_the_table() -> None:
    assert PAGE.read_text() == text_columns.page(), (
        "write it anew: python -m armwise.feedback.log.text_columns > docs/reference/texts.md"
    )
