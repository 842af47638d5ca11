"""A server process that is told to stop under load."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import openai
import pytest

from benchmarks.soak_server import serving

ARGUMENTS = ["zoo:target", "--dtype", "float32", "--threads", "1", "--max-rows", "8"]
NUM_STREAMS = 30


@pytest.mark.slow
def test_sigterm_loses_nothing_that_was_accepted() -> None:
    with serving(ARGUMENTS) as server, ThreadPoolExecutor(NUM_STREAMS) as pool:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0, timeout=300)
        accepted = Barrier(NUM_STREAMS + 1)

        def body(number: int) -> dict[str, Any]:
            limit = {"max_tokens": 3 + number % 4, "temperature": 0}
            return {"model": "zoo:target", "prompt": f"def function_{number}(a, b):", **limit}

        def streamed(number: int) -> str:
            stream = client.completions.create(**body(number), stream=True)
            accepted.wait(300)  # the response has begun
            return "".join(chunk.choices[0].text for chunk in stream)

        alone = [client.completions.create(**body(number)).choices[0].text for number in range(NUM_STREAMS)]
        answers = [pool.submit(streamed, number) for number in range(NUM_STREAMS)]
        accepted.wait(300)
        server.process.send_signal(signal.SIGTERM)
        with pytest.raises((openai.InternalServerError, openai.APIConnectionError)) as refused:
            while True:
                client.completions.create(**body(0) | {"max_tokens": 1})
        assert getattr(refused.value, "status_code", 503) == 503
        assert [answer.result(300) for answer in answers] == alone
        assert server.process.wait(120) == 0
