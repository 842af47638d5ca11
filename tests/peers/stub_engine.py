"""A stub engine, run by serve.py in a process of its own: settings and requests determine how it
behaves."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import Any


def start(settings: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    print("loading")  # not on the pipe
    if settings.get("mode") == os.environ.get("STUB_FAILS", "never"):
        raise ValueError("these weights are for another engine")
    time.sleep(float(settings.get("sleep", 0)))
    left = int(os.environ.get("STUB_LASTS", "1000")) if settings.get("mode") == "draft" else 1000

    def run(request: Mapping[str, Any]) -> list[list[int]]:
        nonlocal left
        left -= 1
        if request.get("die") or left < 0:
            print("a wheel came off", file=sys.stderr, flush=True)
            os._exit(3)
        if request.get("child"):  # it keeps the pipe open when its parent is gone
            if os.fork() == 0:
                time.sleep(60)
            os._exit(4)
        if request.get("break"):
            raise RuntimeError("no memory\nleft")
        time.sleep(request.get("sleep", 0))
        if settings.get("mode") == "prompt-lookup" and request["temperature"] > 0:
            raise NotImplementedError("it only looks up greedily")
        return [[token % 7 for token in prompt][: request["max_tokens"]] for prompt in request["prompts"]]

    return {"precision": f"{settings.get('dtype', '?')} in threes", "pid": os.getpid()}, run
