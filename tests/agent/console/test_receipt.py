"""The overview begins with the newest receipt of its decision point."""

from armwise.agent.console.page import CONSOLE
from armwise.agent.lab.receipt import keep_receipt, write_sentence
from tests.agent.console.test_pages import plain, seen
from tests.agent.fakes import Service
from tests.agent.lab.receipt.test_receipt import stated


async def test_the_newest_receipt_is_the_first_line_of_the_overview(service: Service) -> None:
    assert "armwise prove" not in plain(await seen(service, ""))
    home = service.config.home_path
    receipt = stated(reference="<b>dear</b>")
    keep_receipt(receipt, home, "other")
    assert "armwise prove" not in plain(await seen(service, ""))
    keep_receipt(receipt, home, service.point.name)
    page = await seen(service, "")
    assert "<b>dear" not in page
    shown = plain(page)
    assert write_sentence(receipt) in shown
    assert shown.index("Beside always using") < shown.index("Is it learning?")
    part = await service.client.get(CONSOLE, headers={"hx-request": "true"})
    assert "Beside always using" in part.text


async def test_a_receipt_that_cannot_be_read_is_not_shown(service: Service) -> None:
    folder = service.config.home_path / "receipts"
    folder.mkdir(parents=True)
    (folder / f"{service.point.name}.json").write_text("[]")
    assert "Beside always using" not in plain(await seen(service, ""))
