"""The reference of settings is complete and up to date."""

from pathlib import Path

from agent.config.reference import pages

DOCUMENT = Path(__file__).parents[3] / "docs" / "reference" / "configuration.md"


def test_the_document_is_what_the_settings_say() -> None:
    written = "\n".join(pages()).rstrip() + "\n"
    assert DOCUMENT.read_text(encoding="utf-8") == written, (
        "write it anew: python -m agent.config.reference > docs/reference/configuration.md"
    )


def test_every_setting_says_what_it_is() -> None:
    rows = [line for line in pages() if line.startswith("| `")]
    silent = [row for row in rows if row.count("|") == 4 and row.rstrip(" |").endswith("`")]
    assert not silent
