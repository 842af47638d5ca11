"""A server whose drafter learns, its trainer killed under load, then itself."""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest
import torch

import outpace
from benchmarks.soak_server import ServerProcess, serving
from outpace.serving.learning.weights_file import NAME
from tests.serving.http.conftest import wait_until

PROMPTS = [f"def function_{number}(a, b):" for number in range(12)]
LENGTH = 12


def arguments(folder: Path) -> list[str]:
    given = "zoo:target --draft zoo:draft --method online-sd --requests 2 --positions 24 --depth 3"
    return [*given.split(), "--dtype", "float32", "--threads", "1", "--max-rows", "4", "--learn", str(folder)]


def trainer_of(server: ServerProcess) -> psutil.Process:
    found = [
        each
        for each in psutil.Process(server.process.pid).children(recursive=True)
        if "spawn_main" in " ".join(each.cmdline())
    ]
    assert len(found) == 1
    return found[0]


def has_ended(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def answers(server: ServerProcess, pool: ThreadPoolExecutor, temperature: float = 0.0) -> list[Any]:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0, timeout=300)
    body = {"model": "zoo:target", "max_tokens": LENGTH, "temperature": temperature}
    return [pool.submit(client.completions.create, **body, prompt=prompt) for prompt in PROMPTS]


def learn_until(server: ServerProcess, pool: ThreadPoolExecutor, version: float) -> None:
    """Send requests until the drafter has a later version; they are sampled, so that it always has some more
    to learn."""

    def is_learned() -> bool:
        for each in answers(server, pool, temperature=1.5):
            each.result(300)
        return server.metrics()["outpace_learning_version"] > version

    end = time.monotonic() + 400  # a busy machine leaves little to a process of low priority
    while not is_learned():
        assert time.monotonic() < end, "nothing is learned"


@pytest.mark.slow
def test_killing_the_trainer_and_the_server_loses_nothing(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    model = outpace.load("zoo:target", dtype="float32")
    plain = [
        each.text
        for each in outpace.generate(model, PROMPTS, "autoregressive", max_tokens=LENGTH, temperature=0.0)
    ]

    def texts(waiting: list[Any]) -> list[str]:
        return [each.result(300).choices[0].text for each in waiting]

    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        with serving(arguments(tmp_path)) as server:
            wait_until(lambda: any("from all requests, from version 0" in line for line in server.log))
            learn_until(server, pool, 1)
            waiting = answers(server, pool)
            trainer_of(server).kill()
            assert texts(waiting) == plain
            learn_until(server, pool, server.metrics()["outpace_learning_version"])  # by a new trainer
            found = server.metrics()
            assert found["outpace_learning_trainer_deaths_total"] == found["outpace_learning_trainer_up"] == 1
            waiting, last = answers(server, pool), trainer_of(server)
            waiting[0].result(300)
            server.process.send_signal(signal.SIGTERM)
            for each, text in zip(waiting, plain, strict=True):  # answered, or never admitted
                if (error := each.exception(300)) is None:
                    assert each.result().choices[0].text == text
                else:
                    assert isinstance(error, openai.InternalServerError | openai.APIConnectionError)
            assert server.process.wait(120) == 0
            wait_until(lambda: has_ended(last))
        saved = (tmp_path / NAME).read_bytes()
        with serving(arguments(tmp_path)) as server:
            version = server.metrics()["outpace_learning_version"]
            assert version >= found["outpace_learning_version"]
            wait_until(lambda: any(f"from version {version:.0f}" in line for line in server.log))
            assert texts(answers(server, pool)) == plain
            waiting, last = answers(server, pool), trainer_of(server)
            waiting[0].result(300)
            server.process.kill()
            lost = [each for each in waiting if each.exception(300) is not None]
            assert all(isinstance(each.exception(), openai.APIConnectionError) for each in lost)
            wait_until(lambda: has_ended(last))
        assert (tmp_path / NAME).read_bytes() == saved  # whole, as the server before left it
