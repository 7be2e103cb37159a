"""The picture of the page of a demo, as its guide shows it: `console_pictures --demo`."""

import shutil
from pathlib import Path

import pytest
import typer
from PIL import Image

from benchmarks.console_pictures import take_demo
from tests.agent.browsing import CHROMIUM

PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>A run</title></head>
<body style="margin: 0; background: {background}"><svg width="1280" height="{height}"></svg></body></html>"""


def page(folder: Path, height: int) -> Path:
    """Write a page of a height with a drawing; return its path."""
    (folder / "index.html").write_text(PAGE.format(background="rgb(64, 128, 192)", height=height))
    return folder / "index.html"


@pytest.mark.parametrize(
    ("scheme", "name", "height", "taken"), [("light", "demo", 900, 900), ("dark", "demo-dark", 9000, 1400)]
)
@pytest.mark.slow
def test_the_upper_part_of_the_page_is_taken(
    tmp_path: Path, scheme: str, name: str, height: int, taken: int
) -> None:
    if shutil.which(CHROMIUM) is None:
        pytest.skip("make browser installs it")
    take_demo(page(tmp_path, height), tmp_path / "img", scheme)
    assert [path.name for path in (tmp_path / "img").iterdir()] == [f"{name}.png"]
    with Image.open(tmp_path / "img" / f"{name}.png") as picture:
        assert picture.width == 1280
        assert abs(picture.height - taken) <= 20, "the line below a drawing"
        assert picture.convert("RGB").getpixel((640, 450)) == (64, 128, 192)


def test_a_page_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(typer.BadParameter, match=r"index\.html is not there: `make demo` leaves"):
        take_demo(tmp_path / "index.html", tmp_path / "img", "light")
    assert not (tmp_path / "img").exists()
