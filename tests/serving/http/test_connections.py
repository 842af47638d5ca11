"""Clients that leave, a full queue, and the end of the server."""

from __future__ import annotations

import gc
import http.client
import json
import subprocess
import sys
from threading import Event, Thread
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest

from benchmarks.soak_traffic import KILLED_CLIENT
from outpace.serving.http import sse
from outpace.serving.http.generation import Generation
from outpace.serving.scheduler import Ticket

LONG: dict[str, Any] = {
    "model": "zoo",
    "prompt": "def add(a, b):",
    "max_tokens": 2000,
    "extra_body": {"ignore_eos": True, "speculation": False},
}
SHORT = {"model": "zoo", "prompt": "def", "max_tokens": 2}


@pytest.mark.slow
def test_a_client_that_leaves_frees_its_row(running: Any, client: Any, wait: Any) -> None:
    engine = running.service.engine
    with client.completions.create(**LONG, stream=True) as stream:
        next(iter(stream))
        assert engine.num_running == 1
    wait(lambda: engine.num_running == 0)
    impatient = openai.OpenAI(base_url=f"{running.url}/v1", api_key="x", max_retries=0, timeout=1)
    with pytest.raises(openai.APITimeoutError):
        impatient.completions.create(**LONG, n=2)  # not streamed
    wait(lambda: engine.num_running == engine.num_waiting == 0)
    wait(lambda: running.admission.num_active == 0)


def test_a_client_that_is_killed_frees_its_rows(running: Any, wait: Any) -> None:
    engine = running.service.engine
    body = {name: value for name, value in LONG.items() if name != "extra_body"} | LONG["extra_body"]
    host, text = urlsplit(running.url).netloc, json.dumps(body | {"stream": True})
    command = [sys.executable, "-c", KILLED_CLIENT, host, "/v1/completions", text, "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"streaming\n"
        assert engine.num_running == 2
        process.kill()
    wait(lambda: engine.num_running == engine.num_waiting == 0)
    wait(lambda: running.admission.num_active == 0)


def test_a_stream_without_events_is_kept_alive(
    running: Any, model: Any, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    score, goes_on = model.target.score, Event()

    def blocked(*arguments: Any, **options: Any) -> Any:
        goes_on.wait(120)
        return score(*arguments, **options)

    monkeypatch.setattr(sse, "KEEP_ALIVE_SECONDS", 0.05)
    monkeypatch.setattr(model.target, "score", blocked)
    connection = http.client.HTTPConnection(urlsplit(running.url).netloc, timeout=120)
    body = json.dumps(SHORT | {"stream": True, "temperature": 0})
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    assert [response.readline() for _ in range(6)] == [b": keep-alive\n", b"\n"] * 3
    stream = client.completions.create(**SHORT, temperature=0, stream=True)
    goes_on.set()
    text = "".join(chunk.choices[0].text for chunk in stream)
    events = [line[6:] for line in response.read().splitlines() if line.startswith(b"data: ")]
    connection.close()
    assert events.pop() == b"[DONE]"
    assert "".join(json.loads(each)["choices"][0]["text"] for each in events) == text != ""


def test_a_full_queue_refuses_and_a_free_one_takes(model: Any, serve: Any, wait: Any) -> None:
    with serve(model, "autoregressive", max_rows=1, max_waiting=2) as running:
        client, engine = running.client(), running.service.engine
        first = client.completions.create(**LONG, stream=True)
        wait(lambda: engine.num_running == 1)
        second = client.completions.create(**LONG, stream=True)
        wait(lambda: engine.num_waiting == 1)
        with pytest.raises(openai.RateLimitError) as caught:
            client.completions.create(**LONG, n=2)  # of which one would fit
        assert caught.value.code == "queue_full" and caught.value.response.headers["retry-after"]
        wait(lambda: engine.num_waiting == 1)
        first.close()
        second.close()
        assert client.completions.create(**SHORT).choices


def test_a_slow_reader_holds_back_nobody(running: Any, client: Any) -> None:
    with client.completions.create(**LONG, stream=True) as slow:
        next(iter(slow))  # and reads no more
        assert client.completions.create(**SHORT).choices


def test_a_prompt_beyond_the_memory_is_refused(model: Any, serve: Any) -> None:
    with pytest.raises(ValueError, match="hold no prompt, not even one of one token") as refused:
        with serve(model, "autoregressive", kv_bytes=1):
            pass
    least = int(str(refused.value).rpartition(" ")[2].removesuffix("KiB"))
    with serve(model, "autoregressive", kv_bytes=1024 * least) as running:
        with pytest.raises(openai.BadRequestError, match="KV cache"):
            running.client().completions.create(**SHORT | {"prompt": "def f(x): return x\n" * 40})


@pytest.mark.slow
def test_a_closing_server_completes_what_it_admitted_and_refuses_the_rest(model: Any, serve: Any) -> None:
    with serve(model) as running:
        client = running.client()
        stream = client.completions.create(**LONG | {"max_tokens": 60}, stream=True)
        chunks = iter(stream)
        next(chunks)
        running.admission.is_closed = True
        with pytest.raises(openai.InternalServerError) as caught:
            client.completions.create(**SHORT)
        assert caught.value.status_code == 503 and "shutting down" in caught.value.message
        assert running.call("/health")[0] == 503
        running.close()
        assert [each.choices[0].finish_reason for each in chunks][-1] == "length"
        running.thread.join(60)
        assert not running.thread.is_alive()


@pytest.mark.parametrize("again", [True, False])
def test_a_second_signal_or_the_timeout_cancels(model: Any, serve: Any, wait: Any, again: bool) -> None:
    with serve(model, "autoregressive", shutdown_timeout=60 if again else 0) as running:
        client, failures = running.client(), list[Exception]()

        def unfinished() -> None:
            try:
                client.completions.create(**LONG)
            except openai.APIStatusError as error:
                failures.append(error)

        waiting = Thread(target=unfinished)
        with client.completions.create(**LONG, stream=True) as stream:
            chunks = iter(stream)
            next(chunks)
            waiting.start()
            wait(lambda: running.service.engine.num_running == 2)
            running.close()
            if again:
                running.close()
            with pytest.raises(openai.APIError, match="before the answer was complete"):
                list(chunks)
        waiting.join(60)
        running.thread.join(60)
        assert not running.thread.is_alive()
        assert [error.status_code for error in failures] == [503]


@pytest.mark.slow
def test_nothing_of_an_answered_request_waits_for_the_garbage_collector(running: Any, wait: Any) -> None:
    """Its prompt may have many thousands of tokens, and the collector counts objects."""
    gc.collect()
    gc.disable()
    try:
        for stream in (False, True):
            body = {"prompt": "def add(a, b):", "max_tokens": 2, "stream": stream}
            assert running.call("/v1/completions", body)[0] == 200
        wait(lambda: not any(type(each) in (Ticket, Generation) for each in gc.get_objects()))
    finally:
        gc.enable()
