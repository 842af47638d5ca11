"""The ASGI application: routes, checks before them, and the engine's life."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request, Response
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from outpace import __version__
from outpace.serving.http.disconnect import Disconnected
from outpace.serving.http.errors import RESPONSES, add_handlers
from outpace.serving.http.middleware.admission import Admission, Admit
from outpace.serving.http.middleware.api_keys import ApiKeys
from outpace.serving.http.middleware.body_limit import BodyLimit
from outpace.serving.http.middleware.error_count import ErrorCount
from outpace.serving.http.middleware.rate_limit import RateLimit
from outpace.serving.http.routes.chat import chat
from outpace.serving.http.routes.completions import completions
from outpace.serving.http.routes.models import models
from outpace.serving.http.routes.operations import operations
from outpace.serving.http.routes.page import page
from outpace.serving.http.routes.responses import responses
from outpace.serving.http.routes.tokenization import tokenization
from outpace.serving.http.service import Service

CLIENT_CLOSED_REQUEST = 499  # no status of HTTP: nginx's for a client that has gone
MAX_REQUEST_BYTES = 4 << 20
SECONDS_TO_CLOSE = 10.0  # that the step in progress gets when the app ends
log = logging.getLogger(__name__)


def create_app(
    service: Service,
    *,
    admission: Admission | None = None,  # by which the server shuts down
    api_keys: Sequence[str] = (),  # none: every request is accepted
    rate_limit: int | None = None,  # POST requests per minute and client
    max_request_bytes: int = MAX_REQUEST_BYTES,  # of a request's body
    allowed_origins: Sequence[str] = (),  # sites whose pages may read answers in browsers; "*": all
) -> FastAPI:
    """An app that serves `service`. The engine runs while the app does."""
    admission = admission or Admission()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.metrics.watch_loop(asyncio.get_running_loop())
        service.engine.start()
        yield
        await asyncio.to_thread(service.engine.close, drain=False, timeout=SECONDS_TO_CLOSE)

    middleware = [Middleware(ErrorCount, service.metrics.http_error)]
    if allowed_origins:
        # before the keys: browsers ask without one whether they may send a request
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=allowed_origins,
                allow_methods=["*"],
                allow_headers=["*"],
                expose_headers=["Retry-After"],
            )
        )
    middleware.append(Middleware(ApiKeys, api_keys))
    if rate_limit is not None:
        middleware.append(Middleware(RateLimit, rate_limit))
    middleware += [Middleware(Admit, admission), Middleware(BodyLimit, max_request_bytes)]
    app = FastAPI(
        title="outpace",
        version=__version__,
        lifespan=lifespan,
        middleware=middleware,
        responses=RESPONSES,
        # the pages of these load scripts from elsewhere
        docs_url=None,
        redoc_url=None,
    )
    add_handlers(app)

    @app.exception_handler(Disconnected)
    async def gone(request: Request, error: Disconnected) -> Response:
        log.debug("the client of %s disconnected", request.url.path)
        return Response(status_code=CLIENT_CLOSED_REQUEST)

    app.include_router(operations(service, admission))
    app.include_router(page())
    for routes in (models, tokenization, completions, chat, responses):
        app.include_router(routes(service))
    return app
