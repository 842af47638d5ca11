"""A client of an OpenAI-compatible server: completions, one at a time per thread, with bounded waiting."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from ipaddress import ip_address
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

import httpx2

CONNECT_SECONDS = 10.0
REQUEST_SECONDS = 120.0  # for one answer
MAX_BYTES = 16 << 20  # of one answer
MAX_RETRIES, MAX_WAIT = 5, 60.0  # of a request that is told to come later, and seconds of one wait
SHOWN = 200  # characters of a server's message
REFUSED = (400, 422)
ASK = "is it an OpenAI-compatible server?"


class EndpointError(ValueError):
    """A server cannot be audited, or not any further; the message is for the user."""


class Refused(EndpointError):
    """The server refuses a request because of its fields."""


@dataclass(frozen=True)
class Answer:
    """One generated text, as far as the server describes it."""

    text: str
    finish_reason: str | None
    token_ids: tuple[int, ...] | None = None  # with the token that ended the text, if the server counts it
    words: tuple[str, ...] | None = None  # its tokens as text, as OpenAI's completions spell them
    log_probs: tuple[float | None, ...] | None = None
    tops: tuple[Mapping[str, float], ...] | None = None  # most probable tokens at each, as text
    num_tokens: int | None = None  # as the server counts them
    num_prompt_tokens: int | None = None


@dataclass
class Endpoint:
    """A server and the fields that it does not refuse."""

    url: str  # ends with /v1 or another path of the API
    model: str
    key: str | None = None
    seconds: float = REQUEST_SECONDS
    # optional fields that it does not refuse, sent with every request
    fields: list[Mapping[str, Any]] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)  # name of others -> the server's message
    num_requests: int = 0
    num_tokens: int = 0
    num_waits: int = 0

    def __post_init__(self) -> None:
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        timeout = httpx2.Timeout(self.seconds, connect=min(CONNECT_SECONDS, self.seconds))
        # without the environment's proxies: the address is the server's
        self._client = httpx2.Client(headers=headers, timeout=timeout, trust_env=False)
        self._lock = Lock()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def check_model(self, *, only: bool = False) -> None:
        """EndpointError unless the server lists the model; servers without a list are not asked further.
        `only`: if the server has only one model, that is meant, whatever its name."""
        try:
            listed = self._call("GET", "/models")
        except NotFound:
            return
        data = listed.get("data")
        names = [each.get("id") for each in data if isinstance(each, dict)] if isinstance(data, list) else []
        if only and len(names) == 1:
            self.model = str(names[0])
        elif names and self.model not in names:
            known = ", ".join(map(str, names[:5]))
            raise EndpointError(f"there is no model {self.model!r} at {self.url}: use {known}")

    def complete(self, prompt: str | list[int], max_tokens: int, **given: Any) -> Answer:
        """The answer to one request, with the optional fields that the server takes. Refused if it refuses
        one of them, EndpointError if there is no answer."""
        body = {"model": self.model, "prompt": prompt, "max_tokens": max_tokens}
        for each in self.fields:
            body |= each
        found = self._call("POST", "/completions", body | given)
        answer = _read(found, self.url)
        with self._lock:
            self.num_tokens += answer.num_tokens or max_tokens
        return answer

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The JSON object with which the server answers."""
        return self._call("POST", path, {"model": self.model, **body})

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        began = time.monotonic()
        for attempt in range(MAX_RETRIES + 1):
            with self._lock:
                self.num_requests += body is not None
            status, headers, text = self._send(method, path, body, began + self.seconds)
            if status not in (429, 503):
                return self._value(status, text, path)
            wait = _retry_after(headers.get("retry-after"), attempt)
            if attempt == MAX_RETRIES or wait > MAX_WAIT:
                break
            with self._lock:
                self.num_waits += 1
            time.sleep(wait)
            began = time.monotonic()
        raise EndpointError(
            f"{self.url} is too busy or limits requests (status {status}) after {attempt + 1} attempts: "
            "raise its limit, or try again later"
        )

    def _send(
        self, method: str, path: str, body: Mapping[str, Any] | None, end: float
    ) -> tuple[int, Mapping[str, str], str]:
        chunks, size = list[bytes](), 0
        try:
            with self._client.stream(method, self.url + path, json=body) as response:
                for chunk in response.iter_bytes():
                    chunks.append(chunk)
                    size += len(chunk)
                    if size > MAX_BYTES:
                        raise EndpointError(f"{self.url} answers without end: {ASK}")
                    if time.monotonic() > end:
                        raise EndpointError(f"{self.url} did not end its answer in {self.seconds:g} s")
                headers, status = response.headers, response.status_code
        except httpx2.TimeoutException as error:
            raise EndpointError(f"{self.url} did not answer within {self.seconds:g} s") from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            reason = str(error).rstrip(".") or type(error).__name__
            raise EndpointError(f"{self.url} cannot be reached ({reason}): is the server running?") from error
        return status, headers, b"".join(chunks).decode("utf-8", "replace")

    def _value(self, status: int, text: str, path: str) -> dict[str, Any]:
        try:
            value = json.loads(text)
        except ValueError:
            value = None
        said = _message(value, text)
        if status in (401, 403):
            raise EndpointError(
                f"{self.url} refuses the key (status {status}): set OPENAI_API_KEY or give --api-key"
            )
        if status == 404 and "model" not in said.lower():
            raise NotFound(
                f"{self.url}{path} does not exist: give the address of an OpenAI-compatible server with "
                "completions, such as http://localhost:8000/v1"
            )
        if status in REFUSED:
            raise Refused(f"{self.url} refuses a request (status {status}): {said}")
        if status >= 300:
            raise EndpointError(f"{self.url} fails with status {status}: {said}")
        if not isinstance(value, dict):
            raise EndpointError(f"{self.url} answers with something that is no JSON object ({said}): {ASK}")
        return value


class NotFound(EndpointError):
    """The server has no such route."""


def address(url: str, allow_remote: bool, option: str) -> str:
    """The address of an API without a slash at its end, `/v1` added where there is no path. ValueError for no
    http address, or for one that is not on this machine unless `allow_remote`."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
        raise ValueError(
            f"{option} {url} is no address of a server: give one such as http://localhost:8000/v1"
        )
    if not allow_remote and not _is_local(host):
        raise ValueError(
            f"{option} {url} is not on this machine, and an audit sends it hundreds of requests: add "
            "--allow-remote if you may do that"
        )
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/') or '/v1'}"


def _is_local(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _retry_after(given: str | None, attempt: int) -> float:
    """Seconds to wait: what the header says, else longer from attempt to attempt."""
    if given:
        try:
            return max(0.0, float(given))
        except ValueError:
            try:
                return max(0.0, parsedate_to_datetime(given).timestamp() - time.time())
            except ValueError:
                pass
    return float(2**attempt)


def _message(value: Any, text: str) -> str:
    """The server's error message, or the beginning of what it sent, on one line."""
    error = value.get("error", value) if isinstance(value, dict) else None
    said = error.get("message") if isinstance(error, dict) else error
    said = said if isinstance(said, str) else text
    said = " ".join(said.split())
    return said if len(said) <= SHOWN else said[:SHOWN] + "..."


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None


def _read(found: dict[str, Any], url: str) -> Answer:
    """The first choice of a completion. EndpointError if it has no text or malformed lists."""
    wrong = EndpointError(f"{url} answers in another form than OpenAI's completions: {ASK}")
    try:
        choice = found["choices"][0]
        logs = choice.get("logprobs") or {}
        usage = found.get("usage") or {}
        words, own, tops = (logs.get(name) for name in ("tokens", "token_logprobs", "top_logprobs"))
        token_ids = choice.get("token_ids")
        if not isinstance(choice["text"], str):
            raise wrong
        answer = Answer(
            choice["text"],
            choice.get("finish_reason"),
            None if token_ids is None else tuple(int(each) for each in token_ids),
            None if words is None else tuple(str(each) for each in words),
            None if own is None else tuple(None if each is None else float(each) for each in own),
            None
            if tops is None
            else tuple({str(k): float(v) for k, v in (each or {}).items()} for each in tops),
            _count(usage.get("completion_tokens")),
            _count(usage.get("prompt_tokens")),
        )
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise wrong from error
    lengths = {len(each) for each in (answer.words, answer.log_probs) if each is not None}
    if len(lengths) > 1:
        raise EndpointError(f"{url} gives lists of log probabilities of different lengths: {sorted(lengths)}")
    return answer
