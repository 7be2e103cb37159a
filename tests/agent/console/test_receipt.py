"""The details begin with the newest receipt."""

from pathlib import Path

import pytest

from armwise.agent.console.page import CONSOLE
from armwise.agent.proof import keep_receipt, write_sentence
from armwise.feedback.log import without_password
from tests.agent.console.test_pages import plain, seen
from tests.agent.fakes import Service
from tests.agent.proof.test_receipt import stated


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("ARMWISE_HOME", str(folder))
    return folder


async def test_the_newest_receipt_is_the_first_line_of_the_details(service: Service) -> None:
    assert "armwise prove" not in plain(await seen(service, "/details"))
    receipt = stated(reference="<b>dear</b>")
    source = without_password(service.config.database_url)
    keep_receipt(receipt, service.config)
    assert "armwise prove" not in plain(await seen(service, "/details")), "it is of another log"
    receipt = receipt.model_copy(update={"source": source})
    keep_receipt(receipt, service.config)
    page = await seen(service, "/details")
    assert "<b>dear" not in page
    shown = plain(page)
    assert write_sentence(receipt) in shown
    part = await service.client.get(f"{CONSOLE}/details", headers={"hx-request": "true"})
    assert "had answered each of them" in part.text


async def test_a_receipt_that_cannot_be_read_is_not_shown(service: Service, home: Path) -> None:
    (home / "receipt.json").write_text("[]")
    assert "had answered each of them" not in plain(await seen(service, "/details"))
