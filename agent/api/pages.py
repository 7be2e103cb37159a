"""The interactive page of the API, `/docs`: Swagger UI from a package, so that it works without a network."""

import base64
import hashlib
from importlib import resources
from pathlib import Path

from fastapi import APIRouter
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse, Response

FILES = ("swagger-ui-bundle.js", "swagger-ui.css", "favicon.png")
"""What the page loads, of the package `fastapi_offline`."""

_FOLDER = Path(str(resources.files("fastapi_offline"))) / "static"

FEEDBACK_SCRIPT, FEEDBACK_BUTTON = "/feedback.js", "/v1/feedback/button"
"""The script of the buttons, and where they send: a token stands for a key there, also from other sites."""

CHAT = "/chat"
"""The chat page."""

CHAT_SCRIPT = "/chat.js"
"""The script with which a page of any site shows the chat page in a panel."""

CHAT_FILES = ("chat_page.js", "chat.css")
"""What the chat page loads, below its path."""

ANY_SITE = (FEEDBACK_SCRIPT, FEEDBACK_BUTTON, CHAT_SCRIPT)
"""Paths that a page of any site may have a browser ask for."""

PUBLIC = (
    *("/", "/docs", *(f"/docs/{name}" for name in FILES)),
    *(CHAT, *(f"{CHAT}/{name}" for name in CHAT_FILES), *ANY_SITE),
)
"""Paths that need no key: they show nothing of the service."""

router = APIRouter(include_in_schema=False)


def _page() -> HTMLResponse:
    """Return the page: its URLs are relative, and its own script is the only inline one that runs."""
    made = get_swagger_ui_html(
        openapi_url="openapi.json",
        title="Armwise",
        swagger_js_url="docs/swagger-ui-bundle.js",
        swagger_css_url="docs/swagger-ui.css",
        swagger_favicon_url="docs/favicon.png",
        swagger_ui_parameters={"persistAuthorization": False, "tryItOutEnabled": True},
    )
    _, _, script = bytes(made.body).rpartition(b"<script>")
    digest = base64.b64encode(hashlib.sha256(script.partition(b"</script>")[0]).digest()).decode()
    made.headers["content-security-policy"] = (
        f"default-src 'none'; script-src 'self' 'sha256-{digest}'; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    return made


_PAGE = _page()


@router.get("/")
async def root() -> Response:
    """Lead a browser to the page."""
    return RedirectResponse("docs", 307)


@router.get("/docs")
async def docs() -> Response:
    """The operations of the service, and a form to call them."""
    return _PAGE


def _serve(name: str) -> None:
    @router.get(f"/docs/{name}", name=name)
    async def file() -> Response:
        return FileResponse(_FOLDER / name, headers={"cache-control": "max-age=86400"})


for _name in FILES:
    _serve(_name)
