"""llama.cpp's server as a worker: plain decoding, a draft model, or n-grams of the text, over HTTP on this
machine."""

from __future__ import annotations

import atexit
import http.client
import json
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

HOST = "127.0.0.1"
SLACK = 64  # cache positions of a slot beyond the longest request and its draft
START = 120.0  # seconds in which the server must have loaded its models
PAUSE = 0.05  # seconds between two questions whether it has
REASON = 300  # maximum characters of an error message
# sampling parameter -> llama.cpp's name of it, and of its sampler
SETTINGS = {
    "repetition_penalty": ("repeat_penalty", "penalties"),
    "top_k": ("top_k", "top_k"),
    "top_p": ("top_p", "top_p"),
    "min_p": ("min_p", "min_p"),
}


def start(
    settings: Mapping[str, Any],
) -> tuple[dict[str, Any], Callable[[Mapping[str, Any]], list[list[int]]]]:
    """Start the server and wait until it has loaded its models; returns the precision and a function that
    runs a request. RuntimeError if the server ends before."""
    server = Server(settings)
    threads = ThreadPoolExecutor(max(1, int(settings["batch"])))

    def run(request: Mapping[str, Any]) -> list[list[int]]:
        bodies = [
            body(request, prompt, seed)
            for prompt, seed in zip(request["prompts"], request["seeds"], strict=True)
        ]
        found = list(threads.map(server.complete, bodies))
        return [tokens_of(answer, request) for answer in found]

    return {"precision": f"{server.file_type()}, cache f16"}, run


def arguments(settings: Mapping[str, Any], port: int) -> list[str]:
    """The server's command line. Caches of prompts are off, so that every prompt is read, as by all
    contenders."""
    batch, threads = int(settings["batch"]), str(settings["threads"])
    tokens = int(settings["needed_tokens"]) + int(settings["depth"] or 0) + SLACK
    return [
        *(str(settings["program"]), "--model", str(settings["target"]), "--host", HOST, "--port", str(port)),
        *("--threads", threads, "--threads-batch", threads, "--parallel", str(batch)),
        *("--ctx-size", str(batch * tokens), "--flash-attn", "on", "--no-cache-prompt", "--cache-ram", "0"),
        *speculation(settings),
    ]


def speculation(settings: Mapping[str, Any]) -> list[str]:
    """llama-server's command-line options for speculation; empty for plain decoding."""
    depth, threads, kind = str(settings["depth"]), str(settings["threads"]), settings["type"]
    if settings["mode"] == "draft":
        return [
            *("--model-draft", str(settings["draft"]), "--spec-draft-n-max", depth),
            *("--threads-draft", threads, "--threads-batch-draft", threads),
            *(() if settings["p_min"] is None else ("--spec-draft-p-min", str(settings["p_min"]))),
            *(("--spec-type", "draft-simple") if kind is None else ngrams(kind, 3, depth, ",draft-simple")),
        ]
    if settings["mode"] == "prompt-lookup":
        return ngrams(str(kind), settings["max_ngram"], depth)
    return []


def ngrams(kind: str, size: int, depth: str, otherwise: str = "") -> list[str]:
    """The options for drafts of `depth` tokens from n-grams of `size` tokens, and for another type of drafts
    where there are none."""
    return [
        *("--spec-type", kind + otherwise),
        *(f"--spec-{kind}-size-n", str(size), f"--spec-{kind}-size-m", depth),
    ]


def body(request: Mapping[str, Any], prompt: list[int], seed: int | None) -> dict[str, Any]:
    """A request to /completion; NotImplementedError for a sampling parameter that is not supported. The
    temperature comes before the limits on tokens, as in transformers."""
    found: dict[str, Any] = {
        "prompt": prompt,
        "n_predict": request["max_tokens"],
        "temperature": request["temperature"],
        "seed": (seed or 0) % (1 << 32),
        "ignore_eos": not request["stop"],
        "return_tokens": True,
        "cache_prompt": False,
    }
    samplers = ["temperature"]
    for name, value in request["settings"].items():
        if name not in SETTINGS:
            raise NotImplementedError(f"the llama.cpp peer does not support {name}")
        own, sampler = SETTINGS[name]
        found[own] = value
        samplers.insert(0 if sampler == "penalties" else len(samplers), sampler)
    return {**found, "samplers": samplers}


def tokens_of(answer: Mapping[str, Any], request: Mapping[str, Any]) -> list[int]:
    """The new tokens of an answer, with the end token, which llama.cpp leaves out. RuntimeError for an answer
    that no text can have."""
    tokens = answer.get("tokens")
    if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
        raise RuntimeError(f"llama-server answered without tokens: {str(answer)[:REASON]}")
    if answer.get("stop_type") == "eos" and request["stop"] and len(tokens) < request["max_tokens"]:
        tokens = [*tokens, request["stop"][0]]
    if not 0 < len(tokens) <= request["max_tokens"]:
        raise RuntimeError(f"llama-server answered with {len(tokens)} of {request['max_tokens']} tokens")
    return tokens


class Server:
    """A llama-server process, which ends with this one."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._log = tempfile.TemporaryFile()
        with socket.socket() as free:
            free.bind((HOST, 0))
            self._port = int(free.getsockname()[1])
        command = arguments(settings, self._port)
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self._log
        )
        atexit.register(self._process.kill)
        until = time.monotonic() + START
        while not self._is_ready():
            if self._process.poll() is not None:
                raise RuntimeError(
                    f"llama-server ended with exit code {self._process.returncode}{self._why()}"
                )
            if time.monotonic() > until:
                raise RuntimeError(f"llama-server was not ready after {START:.0f} seconds")
            time.sleep(PAUSE)

    def complete(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """The answer to a request for a completion. RuntimeError if the server refuses it or answers
        something else than a JSON object."""
        status, text = self._ask("POST", "/completion", json.dumps(request))
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if status != http.client.OK or not isinstance(found, dict):
            raise RuntimeError(f"llama-server answered {status}: {' '.join(text.split())[:REASON]}")
        return found

    def file_type(self) -> str:
        """The type of most weights in the model's file, such as Q4_0; "unknown" where the server does not
        say."""
        status, text = self._ask("GET", "/props")
        found = json.loads(text) if status == http.client.OK else {}
        return str(found.get("model_ftype") or "unknown")

    def _is_ready(self) -> bool:
        try:
            return self._ask("GET", "/health")[0] == http.client.OK
        except (OSError, http.client.HTTPException):
            return False

    def _ask(self, method: str, path: str, data: str | None = None) -> tuple[int, str]:
        """(HTTP status, text) of an answer."""
        connection = http.client.HTTPConnection(HOST, self._port)
        try:
            connection.request(method, path, data, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode(errors="replace")
        finally:
            connection.close()

    def _why(self) -> str:
        """The last line of the server's log that names an error, or its last line."""
        self._log.seek(0)
        lines = [line.strip() for line in self._log.read().decode(errors="replace").splitlines()]
        lines = [line for line in lines if line]
        named = [line for line in lines if "error" in line.lower()]
        return f": {(named or lines)[-1][:REASON]}" if lines else ""
