"""The web server: uvicorn, with a shutdown in which every admitted request is completed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from outpace.serving.http.middleware.admission import Admission

SECONDS_TO_SEND = 5  # that responses get after their requests were cancelled
# clients such as httpx close idle connections after 5 seconds; a server that does so at the same time gets
# requests on connections that it has just closed
SECONDS_IDLE = 75
log = logging.getLogger(__name__)


class Server(uvicorn.Server):
    """At the first SIGTERM or SIGINT new requests are refused with 503 and the others are completed, for at
    most `shutdown_timeout` seconds. At the second, or after this time, `cancel` ends them. Then the server
    stops."""

    def __init__(
        self,
        app: FastAPI,
        admission: Admission,
        cancel: Callable[[], object],
        *,
        shutdown_timeout: float,
        access_log: bool = False,  # log every request
    ) -> None:
        """`cancel` is called in a thread."""
        # the command line has set logging up
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=access_log,
            timeout_graceful_shutdown=SECONDS_TO_SEND,
            timeout_keep_alive=SECONDS_IDLE,
        )
        super().__init__(config)
        self._admission, self._cancel, self._shutdown_timeout = admission, cancel, shutdown_timeout
        self._at_once = asyncio.Event()  # set by the second signal
        self._closing: asyncio.Task[None] | None = None
        self.loop: asyncio.AbstractEventLoop | None = None  # None: not started

    async def main_loop(self) -> None:
        self.loop = asyncio.get_running_loop()
        await super().main_loop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # not remembered by uvicorn, which would raise the signal again and end with its status, not with 0
        if self.loop is None:
            self.should_exit = True
        else:
            self.loop.call_soon_threadsafe(self.close)

    def close(self) -> None:
        """Begin to shut down; called again, without waiting for requests. In the event loop's thread."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        else:
            self._at_once.set()

    async def _close(self) -> None:
        admission = self._admission
        admission.is_closed = True
        log.info("shutting down: %d requests are being completed", admission.num_active)
        idle, at_once = (asyncio.ensure_future(each.wait()) for each in (admission.idle, self._at_once))
        await asyncio.wait(
            (idle, at_once), timeout=self._shutdown_timeout, return_when=asyncio.FIRST_COMPLETED
        )
        idle.cancel()
        at_once.cancel()
        if admission.num_active:
            log.warning("%d requests are cancelled", admission.num_active)
            await asyncio.to_thread(self._cancel)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(admission.idle.wait(), SECONDS_TO_SEND)
        self.should_exit = True
