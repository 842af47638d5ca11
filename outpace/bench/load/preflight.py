"""Before a load test: find each server's model, and send one request for every contender.

A test that cannot work ends here, with one sentence that says why.
"""

from __future__ import annotations

from http import HTTPStatus

import httpx2

from outpace.bench.load.server import EXAMPLE
from outpace.bench.load.stream import Response, http_error, reason

API_KEY = "OUTPACE_API_KEY"  # environment variable with the key of the servers
REFUSED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


async def first_model(client: httpx2.AsyncClient, url: str, *, timeout: float) -> str:
    """The name of the first model of a server whose endpoints are below `url`.

    Raises ConnectionError if no server answers and ValueError if it names no model.
    """
    address = f"{url}/models"
    try:
        response = await client.get(address, timeout=timeout)
    except httpx2.HTTPError as error:
        raise ConnectionError(unreachable(address, reason(error))) from error
    if response.status_code != HTTPStatus.OK:
        raise ValueError(refusal(address, response.status_code, http_error(response)))
    try:
        return str(response.json()["data"][0]["id"])
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise ValueError(f"{address} names no model: correct the URL, or give --model") from error


def check_response(response: Response, error: str, address: str) -> None:
    """Raise an exception if the first request to `address` failed; `error`: the reason, or an empty string.

    ConnectionError if no server answered, ValueError for anything else.
    """
    if not error:
        return
    if response.status is None:
        raise ConnectionError(unreachable(address, error))
    if response.status == HTTPStatus.OK:
        raise ValueError(f"{address} does not stream an answer ({error}): give the URL of a server that does")
    raise ValueError(refusal(address, response.status, error))


def unreachable(address: str, error: str) -> str:
    """The sentence for a server that does not answer."""
    return f"no server answers at {address} ({error}): start it, correct the URL, or give a longer --timeout"


def refusal(address: str, status: int, error: str) -> str:
    """The sentence for a server that refuses a request with this HTTP status."""
    fix = "change the options that this is about"
    if status in REFUSED:
        fix = f"give its key with --api-key or in {API_KEY}"
    elif status == HTTPStatus.NOT_FOUND:
        fix = f"give its URL up to /v1, such as {EXAMPLE}, and a --model and an --endpoint that it has"
    elif status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        fix = "its log should say why"
    return f"{address} refuses the request ({error}): {fix}"
