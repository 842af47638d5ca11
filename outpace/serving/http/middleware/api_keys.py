"""Refuses requests without one of the server's API keys."""

from __future__ import annotations

from collections.abc import Sequence
from hmac import compare_digest

from starlette.types import ASGIApp, Receive, Scope, Send

from outpace.serving.http.errors import ApiError

# load balancers and Prometheus ask without a key, as at vLLM's server; the page asks its user for one
OPEN_PATHS = ("/health", "/metrics", "/")
OPEN_FOLDER = "/page/"


def accepted_keys(keys: Sequence[str]) -> tuple[str, ...]:
    """The API keys. ValueError for an empty key: requests without a key would be accepted."""
    if not all(key.strip() for key in keys):
        raise ValueError("an API key is empty: give a key, or leave out --api-key to serve everybody")
    return tuple(keys)


class ApiKeys:
    """Answers 401 to requests without an accepted `Authorization: Bearer KEY`, and keeps the index of the key
    in `scope["state"]["client"]`. Without keys every request passes, and the client is its address."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app, self._keys = app, [key.encode() for key in accepted_keys(keys)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        client = str((scope.get("client") or ("",))[0])
        is_open = scope["path"] in OPEN_PATHS or scope["path"].startswith(OPEN_FOLDER)
        if self._keys and not is_open:
            scheme, _, given = dict(scope["headers"]).get(b"authorization", b"").partition(b" ")
            # every key is compared in constant time, so that answers tell nothing about them
            matches = [compare_digest(given.strip(), key) for key in self._keys]
            if scheme.lower() != b"bearer" or not any(matches):
                sentence = "the API key is missing or wrong: send Authorization: Bearer KEY"
                error = ApiError(
                    401, sentence, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"}
                )
                return await error.response(scope, receive, send)
            client = f"key {matches.index(True)}"
        scope.setdefault("state", {})["client"] = client
        await self._app(scope, receive, send)
