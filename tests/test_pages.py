"""What counts as seen on a page of the documentation, and what does not."""

import pytest

from tests.pages import Block, blocks_of, difference

PRINTED = "arms: small 2,246\nmean  0.6586 [0.64, 0.67]\n\nwritten to home/a.jsonl\ndone in 3.5 s\n"


@pytest.mark.parametrize(
    ("shown", "within"),
    [
        (PRINTED, 0.0),
        ("arms: small 2,246\n...", 0.0),
        ("...\ndone in 3.5 s", 0.0),
        ("...\nmean 0.6586 [0.64, 0.67]\n...\ndone in 3.5 s", 0.0),
        ("...\nmean 0.6586 ...\n...", 0.0),
        ("...\nmean 0.7 [0.6, 0.7]\n...", 0.07),
        ("...\ndone in ... s", 0.0),
        ("...", 0.0),
    ],
)
def test_what_is_printed_is_seen(shown: str, within: float) -> None:
    assert difference(shown, PRINTED, within) is None


@pytest.mark.parametrize(
    ("shown", "printed", "within", "line"),
    [
        ("", PRINTED, 0.0, ""),
        (PRINTED.replace("2,246", "2,247"), PRINTED, 0.0, "arms: small 2,247"),
        ("...\nmean 0.7 [0.6, 0.7]\n...", PRINTED, 0.05, "mean 0.7 [0.6, 0.7]"),
        ("...\nmean 0.6586 [0.64, 0.61]\n...", PRINTED, 0.05, "mean 0.6586 [0.64, 0.61]"),
        ("...\nmean 0.6586 [0.64, 0.67] worse\n...", PRINTED, 0.1, "mean 0.6586 [0.64, 0.67] worse"),
        ("...\ndone in 3.5 s\n...\nmean 0.6586 [0.64, 0.67]\n...", PRINTED, 0.0, "mean 0.6586 [0.64, 0.67]"),
        ("arms: small 2,246", PRINTED, 0.0, "arms: small 2,246"),
        (PRINTED + "promoted", PRINTED, 0.0, "promoted"),
        ("...\npromoted\n...", PRINTED, 0.0, "promoted"),
        ("gain +0.1", "gain -0.1", 0.5, "gain +0.1"),
        ("version v2", "version v3", 0.9, "version v2"),
        ("0.5 of a1b2", "0.6 of a1b3", 0.9, "0.5 of a1b2"),
    ],
)
def test_what_is_not_printed_is_named(shown: str, printed: str, within: float, line: str) -> None:
    """A sign belongs to its figure, and a part of a word is none."""
    assert difference(shown, printed, within) == line


def test_blocks_have_the_heading_above_them_and_their_title() -> None:
    blocks = blocks_of("docs/tutorials/production-logs.md")
    assert blocks[0].part == ""
    saved = next(block for block in blocks if block.title == "make_log.py")
    assert saved == Block("Make a log (2 minutes)", "python", "make_log.py", saved.text)
    assert saved.text.startswith("import csv")
    assert blocks[-1].part.startswith("Let")
