"""GET /health, /version and /metrics, for those who operate the server."""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST

from outpace import __version__
from outpace.serving.http.errors import ApiError
from outpace.serving.http.middleware.admission import Admission
from outpace.serving.http.service import Service


def operations(service: Service, admission: Admission) -> APIRouter:
    """The routes for operation."""
    router = APIRouter()

    @router.get("/health")
    async def health() -> dict[str, str]:
        if admission.is_closed:
            raise ApiError(503, "the server is shutting down: use another one")
        if service.engine.failure is not None:
            raise ApiError(503, service.engine.failure)
        return {"status": "ok"}

    @router.get("/version")
    async def version() -> dict[str, str]:
        return {"version": __version__}

    @router.get("/metrics", response_class=PlainTextResponse)
    def metrics() -> Response:  # called in a thread by FastAPI, since it is not async
        return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    return router
