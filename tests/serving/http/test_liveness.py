"""GET /health tells whether requests are decoded, and no request waits for an engine that has ended."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import openai
import pytest

SHORT = {"model": "zoo", "prompt": "def", "max_tokens": 2}


def test_a_step_that_does_not_end_is_noticed(model: Any, serve: Any, wait: Any, monkeypatch: Any) -> None:
    score, goes_on = model.target.score, Event()

    def blocked(*arguments: Any, **options: Any) -> Any:
        goes_on.wait(120)
        return score(*arguments, **options)

    with serve(model, "autoregressive", stuck_seconds=0.1) as running, ThreadPoolExecutor(1) as pool:
        assert running.call("/health")[0] == 200
        monkeypatch.setattr(model.target, "score", blocked)
        answer = pool.submit(running.client().completions.create, **SHORT)
        wait(lambda: running.call("/health")[0] == 503)
        assert "has not ended for 0.1 s" in running.call("/health")[1]["error"]["message"]
        goes_on.set()
        assert answer.result(120).choices
        wait(lambda: running.call("/health")[0] == 200)


@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_thread_that_ends_fails_every_request(
    model: Any, serve: Any, wait: Any, monkeypatch: Any, caplog: Any, is_streamed: bool
) -> None:
    def ended(*_: Any, **__: Any) -> None:
        raise SystemExit("broken")

    with serve(model, "autoregressive", max_rows=1) as running, ThreadPoolExecutor(2) as pool:
        client, engine = running.client(), running.service.engine

        def failure() -> str:
            with pytest.raises(openai.APIError) as caught:
                answer = client.completions.create(**SHORT | {"max_tokens": 400}, stream=is_streamed)
                if is_streamed:
                    list(answer)
            return caught.value.message

        failures = [pool.submit(failure) for _ in range(2)]
        wait(lambda: engine.num_running == engine.num_waiting == 1)
        monkeypatch.setattr(model.target, "score", ended)
        assert all("decoding failed" in each.result(120) for each in failures)
        assert engine.num_running == engine.num_waiting == 0 and "SystemExit: broken" in caplog.text
        status, found, _ = running.call("/health")
        assert status == 503 and "thread has ended" in found["error"]["message"]
        assert running.call("/v1/completions", SHORT)[0] == 503
