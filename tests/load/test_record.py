"""From the events of a stream to the record of a request."""

from __future__ import annotations

import json

import pytest

from outpace.bench.load.plan import PlannedRequest
from outpace.bench.load.record import RequestRecord, read_response
from outpace.bench.load.stream import Response, error_message
from outpace.bench.measure.workload import WorkloadItem

REQUEST = PlannedRequest(WorkloadItem("p/0", "p", ("text",), False), 0, 1.5)


def chat(**delta: str) -> str:
    return json.dumps({"choices": [{"delta": delta}]})


def text(value: str) -> str:
    return json.dumps({"choices": [{"text": value}]})


USAGE = json.dumps({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5}})


def read(*events: str, error: str = "") -> RequestRecord:
    """Sent at 102 s of a turn that began at 100 s, one event every quarter of a second, over at 105 s."""
    times = [102.25 + 0.25 * index for index in range(len(events))]
    return read_response(Response(102.0, 105.0, times, list(events), 200, error), REQUEST, 100.0)


def test_chunks_with_text_are_timed():
    found = read(chat(role="assistant", content=""), chat(content="a"), chat(content="b"), USAGE, "[DONE]")
    assert found == RequestRecord("p/0", 1.5, 2.0, 3.0, (0.5, 0.75), 7, 5)
    assert not found.failed and found.delay == 0.5
    assert found.time_to_first_token == 0.5 and found.inter_token_latencies == [0.25]
    assert found.time_per_output_token == 0.25 / 4


def test_text_of_completions_and_of_reasoning_counts():
    assert read(text("a"), text(""), text("b"), "[DONE]").chunks == (0.25, 0.75)
    assert read(chat(reasoning_content="a"), chat(reasoning="b"), "[DONE]").chunks == (0.25, 0.5)


def test_usage_may_come_before_the_last_event():
    found = read(text("a"), USAGE, text("b"), "[DONE]")
    assert (found.prompt_tokens, found.output_tokens) == (7, 5)


def test_without_usage_the_time_per_token_is_unknown():
    found = read(text("a"), text("b"), "[DONE]")
    assert found.output_tokens is None and found.time_per_output_token is None


def test_one_token_has_no_time_per_further_token():
    usage = json.dumps({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 1}})
    assert read(text("a"), usage, "[DONE]").time_per_output_token is None


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ((text("a"),), "the stream broke off without [DONE]"),
        ((USAGE, "[DONE]"), "the stream has no text"),
        ((text("a"), "{", "[DONE]"), "an event of the stream is not a JSON object"),
        ((text("a"), '{"error": {"message": "out of  memory"}}', "[DONE]"), "out of memory"),
    ],
)
def test_a_stream_that_is_not_complete_has_failed(events, reason):
    found = read(*events)
    assert found.failed and found.error == reason


def test_the_reason_of_the_connection_comes_first():
    assert read(text("a"), error="HTTP 503").error == "HTTP 503"


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({"error": {"message": "no", "code": 3}}, "no"),
        ({"error": "no"}, "no"),
        ({"detail": "Not Found"}, "Not Found"),
        ({"object": "error", "message": "no"}, "no"),
        ({"id": 1}, ""),
        ([], ""),
    ],
)
def test_the_message_of_an_error(found, message):
    assert error_message(found) == message
