"""GET / and /page/FILE: a page to talk to the model and to see its drafts. It uses the API as any client."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, Response
from fastapi.responses import FileResponse
from starlette.exceptions import HTTPException

FOLDER = Path(__file__).parent.parent / "page"
INDEX = "index.html"
# not guessed: a system may have other types registered, with which browsers run no script
MEDIA_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
HEADERS = {
    # only scripts and styles from files of this server run, and no text can become HTML
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # files of two versions do not meet in a browser
}


def page() -> APIRouter:
    """The routes of the page and its files."""
    router = APIRouter(include_in_schema=False)
    files = {path.name: path for path in FOLDER.iterdir() if path.suffix in MEDIA_TYPES}

    @router.get("/")
    async def index() -> Response:
        return _response(files[INDEX])

    @router.get("/page/{name}")
    async def file(name: str) -> Response:
        if name not in files:
            raise HTTPException(404)
        return _response(files[name])

    return router


def _response(path: Path) -> Response:
    return FileResponse(path, headers=HEADERS, media_type=MEDIA_TYPES[path.suffix])
