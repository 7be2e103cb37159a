"""The configuration reference is generated from the settings, and up to date."""

from pathlib import Path

import pytest

from tests.documents.configuration import DOCUMENTS, pages

PAGES = pages()


@pytest.mark.parametrize("page", PAGES)
def test_the_page_is_what_the_settings_say(page: str) -> None:
    assert (DOCUMENTS / page).read_text(encoding="utf-8") == PAGES[page], (
        "write it anew: python -m tests.documents.configuration"
    )


def test_no_page_of_the_reference_is_left_from_before() -> None:
    there = {f"configuration/{path.name}" for path in Path(DOCUMENTS, "configuration").iterdir()}
    assert there == {page for page in PAGES if page.startswith("configuration/")}
