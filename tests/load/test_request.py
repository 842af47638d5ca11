"""One streamed request: what arrives is recorded, and so is every failure."""

from __future__ import annotations

import asyncio
import json

import pytest

from benchmarks.load.request import RequestRecord, Response, open_client, read_response, stream_completion
from tests.load.stub_server import Answer, StubServer

USAGE = json.dumps({"choices": [], "usage": {"completion_tokens": 5}})


def text(value: str) -> str:
    return json.dumps({"choices": [{"text": value}]})


def read(*events: str, error: str = "") -> RequestRecord:
    """Sent at 102 s of a turn that began at 100 s, one event every quarter of a second, over at 105 s."""
    times = [102.25 + 0.25 * index for index in range(len(events))]
    return read_response(Response(102.0, 105.0, times, list(events), error), 1.5, 100.0)


def send(url: str, timeout: float = 60.0) -> Response:
    async def run() -> Response:
        async with open_client() as client:
            return await stream_completion(client, url, {}, timeout=timeout)

    return asyncio.run(run())


def test_chunks_with_text_are_timed() -> None:
    found = read(text(""), text("a"), text("b"), USAGE, "[DONE]")
    assert found == RequestRecord(1.5, 2.0, 3.0, (0.5, 0.75), 5)
    assert found.delay == 0.5 and found.time_per_output_token == 0.25 / 4


def test_one_token_has_no_time_per_further_token() -> None:
    usage = json.dumps({"choices": [], "usage": {"completion_tokens": 1}})
    assert read(text("a"), usage, "[DONE]").time_per_output_token is None


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ((text("a"), USAGE), "the stream broke off without [DONE]"),
        ((USAGE, "[DONE]"), "the stream has no text"),
        ((text("a"), "[DONE]"), "does not report its number of tokens"),
        ((text("a"), '{"error": {"message": "out of memory"}}', "[DONE]"), "out of memory"),
    ],
)
def test_a_stream_that_is_not_complete_has_failed(events: tuple[str, ...], reason: str) -> None:
    assert reason in read(*events).error


def test_the_reason_of_the_connection_comes_first() -> None:
    assert read(text("a"), error="HTTP 503").error == "HTTP 503"


def test_every_event_has_its_time(stub: StubServer) -> None:
    found = send(stub.url)
    assert (found.error, len(found.events), found.events[-1]) == ("", 5, "[DONE]")
    assert [found.sent, *found.times, found.ended] == sorted([found.sent, *found.times, found.ended])


def test_an_answer_that_takes_too_long(stub: StubServer) -> None:
    stub.answer = lambda number: Answer(stall=True)
    assert send(stub.url, timeout=0.2).error == "no complete answer within 0.2 s"


def test_a_refusal_has_the_message_of_the_server(stub: StubServer) -> None:
    stub.answer = lambda number: Answer(status=429)
    found = send(stub.url)
    assert found.error == 'HTTP 429: {"detail": "the stub refuses"}' and not found.events


def test_no_server(stub: StubServer) -> None:
    stub.close()
    assert send(stub.url).error


def test_line_separators_within_a_text_do_not_end_it(stub: StubServer) -> None:
    stub.answer = lambda number: Answer(extra='{"choices": [{"text": "a\u2028b\u0085c"}]}')
    assert '{"choices": [{"text": "a\u2028b\u0085c"}]}' in send(stub.url).events
