"""Errors in the format of OpenAI's API: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from outpace.serving.http.validation import invalid

log = logging.getLogger(__name__)
TYPES = {
    401: "authentication_error",
    429: "rate_limit_error",
}  # status -> type, where it is not the usual one


class ErrorDetails(BaseModel):
    """What is wrong."""

    message: str
    type: str
    param: str | None  # the field of the request that is wrong
    code: str | None  # the error's name in OpenAI's API


class ErrorBody(BaseModel):
    """The body of every error."""

    error: ErrorDetails


# for the OpenAPI description: FastAPI's own 422 does not occur
RESPONSES: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorBody, "description": "The request is refused"},
    "5XX": {"model": ErrorBody, "description": "The server cannot answer"},
}


class ApiError(Exception):
    """An error that the client receives; `message` is one sentence that names the fix."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,  # the field of the request that is wrong
        code: str | None = None,  # the error's name in OpenAI's API
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = headers

    @property
    def body(self) -> dict[str, Any]:
        """The error as JSON values."""
        kind = TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    @property
    def response(self) -> JSONResponse:
        """The error as the response to a request."""
        return JSONResponse(self.body, self.status, self.headers)


def bad_request(
    error: ValueError | TypeError,
    fields: Mapping[str, Any],
    param: str | None = None,
    *,
    names: Mapping[str, str] | None = None,  # name in the message -> name of the field of the request
) -> ApiError:
    """The error of a request with a wrong value. Messages about a parameter begin with its name, which
    becomes `param` if none is given."""
    names = names or {}
    message = re.sub(r"\w+", lambda word: names.get(word[0], word[0]), " ".join(str(error).split()))
    first = message.partition(" ")[0]
    is_field = first in fields or first in names.values()
    return ApiError(400, message, param=param or (first if is_field else None))


def add_handlers(app: FastAPI) -> None:
    """Let an app answer every exception in this format."""

    @app.exception_handler(ApiError)
    async def refused(request: Request, error: ApiError) -> JSONResponse:
        return error.response

    @app.exception_handler(RequestValidationError)
    async def not_valid(request: Request, error: RequestValidationError) -> JSONResponse:
        message, param = invalid(error)
        return ApiError(400, message, param=param).response

    @app.exception_handler(HTTPException)
    async def not_found(request: Request, error: HTTPException) -> JSONResponse:
        if error.status_code in (404, 405):
            message = f"there is no {request.method} {request.url.path} here: use a route of OpenAI's API"
        else:
            message = f"the request cannot be read: {error.detail}"
        return ApiError(error.status_code, message, headers=error.headers).response

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> JSONResponse:
        # Starlette raises the exception again after the response, and uvicorn logs it
        return ApiError(500, "the server failed: see its log").response
