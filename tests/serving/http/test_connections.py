"""Clients that leave, a full queue, and the end of the server."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Thread
from typing import Any

import openai
import pytest

LONG = {
    "model": "zoo",
    "prompt": "def add(a, b):",
    "max_tokens": 2000,
    "extra_body": {"ignore_eos": True, "speculation": False},
}
SHORT = {"model": "zoo", "prompt": "def", "max_tokens": 2}


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
    with serve(model, "autoregressive", kv_bytes=1) as running:
        with pytest.raises(openai.BadRequestError, match="KV cache"):
            running.client().completions.create(**SHORT)


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


def test_a_signal_under_load_loses_nothing() -> None:
    command = [sys.executable, "-m", "outpace", "serve", "zoo:target", "--port", "0", "--max-rows", "2"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        line = next(line for line in process.stderr if " at http" in line)
        address = re.search(r"http\S+/v1", line)
        assert address and "zoo:target with speculative-sampling" in line
        client = openai.OpenAI(base_url=address[0], api_key="x", max_retries=0, timeout=300)
        body: dict[str, Any] = {
            "model": "zoo:target",
            "prompt": "def add(a, b):",
            "max_tokens": 40,
            "extra_body": {"ignore_eos": True},
        }
        started = Barrier(5)

        def streamed() -> int:
            stream = client.completions.create(**body, stream=True, stream_options={"include_usage": True})
            started.wait(300)  # the response has begun: the request is admitted
            return [chunk.usage.completion_tokens for chunk in stream if chunk.usage][-1]

        with ThreadPoolExecutor(4) as pool:
            answers = [pool.submit(streamed) for _ in range(4)]  # two of them wait for a row
            started.wait(300)
            process.send_signal(signal.SIGTERM)
            with pytest.raises((openai.InternalServerError, openai.APIConnectionError)):
                while True:
                    client.completions.create(**body | {"max_tokens": 1})
            assert [answer.result(300) for answer in answers] == [40] * 4
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.stderr.close()
        process.wait()
