"""One streamed request against a stub server: what arrives is recorded, and so is every failure."""

from __future__ import annotations

import asyncio

from outpace.bench.load.stream import Response, open_client, stream_completion
from tests.load.stub_server import Answer


def send(url: str, timeout: float = 60.0) -> Response:
    async def run() -> Response:
        async with open_client(None) as client:
            return await stream_completion(client, f"{url}/v1/completions", b"{}", timeout=timeout)

    return asyncio.run(run())


def test_every_event_has_its_time(stub):
    found = send(stub.url)
    assert (found.status, found.error, len(found.events)) == (200, "", 5)
    assert found.events[-1] == "[DONE]"
    assert [found.sent, *found.times, found.ended] == sorted([found.sent, *found.times, found.ended])


def test_an_answer_that_takes_too_long(stub):
    stub.answer = lambda number: Answer(stall=True)
    found = send(stub.url, timeout=0.2)
    assert found.error == "no complete answer within 0.2 s"


def test_a_refusal_has_the_message_of_the_server(stub):
    stub.answer = lambda number: Answer(status=429)
    found = send(stub.url)
    assert (found.status, found.error) == (429, "HTTP 429 Too Many Requests: the stub refuses")
    assert not found.events


def test_no_server(stub):
    stub.close()
    found = send(stub.url)
    assert found.status is None and found.error


def test_an_answer_that_is_no_stream(stub):
    stub.answer = lambda number: Answer(content_type="application/json")
    assert "application/json" in send(stub.url).error


def test_line_separators_within_a_text_do_not_end_it(stub):
    stub.answer = lambda number: Answer(extra='{"choices": [{"text": "a\u2028b\u0085c"}]}')
    assert '{"choices": [{"text": "a\u2028b\u0085c"}]}' in send(stub.url).events
