"""Open a page, press its thumb and wait until the feedback is kept: the reader of a tutorial.

    python -m tests.press_thumb URL

In chromium where it is installed; else by what `/feedback.js` sends.
"""

import re
import shutil
import sys

import httpx

from tests.agent.browsing import CHROMIUM, PATIENCE_S, browsing

CONNECTS = 8
"""Further attempts to connect, half a second to a minute apart: the server has just been started."""

KEPT = """() => document.addEventListener("armwise-feedback", (event) => { window.kept = event.detail; })"""


def in_a_browser(url: str) -> None:
    """Press the button as a person does."""
    with browsing() as visit:
        page = visit(900, "light")
        page.goto(url)
        page.evaluate(KEPT)
        page.get_by_label("Good answer").click()
        page.wait_for_function("window.kept", timeout=1000 * PATIENCE_S)
        assert page.evaluate("window.kept") == {"value": "up", "ok": True, "status": 202}


def by_request(url: str) -> None:
    """Send what the script of the page sends."""
    page = httpx.get(url).raise_for_status().text
    (script,) = re.findall(r'src="([^"]+)"', page)
    (token,) = re.findall(r'data-armwise-token="([^"]+)"', page)
    assert "armwise-feedback" in httpx.get(script).raise_for_status().text
    button = script.replace("feedback.js", "v1/feedback/button")
    httpx.post(button, json={"token": token, "value": "up", "change": 0}).raise_for_status()


if __name__ == "__main__":
    with httpx.Client(transport=httpx.HTTPTransport(retries=CONNECTS)) as client:
        client.get(sys.argv[1], timeout=PATIENCE_S).raise_for_status()
    (by_request if shutil.which(CHROMIUM) is None else in_a_browser)(sys.argv[1])
