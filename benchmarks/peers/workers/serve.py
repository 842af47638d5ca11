"""Main program of a worker process: `python serve.py ENGINE.py`, run by the interpreter that has the engine
installed.

ENGINE.py defines `start(settings)`, which loads the models and returns `(about, run)`: facts about the
engine, and a function from a request to lists of new tokens. Messages are JSON lines: the settings first,
answered by the facts, then requests, each answered, until standard input ends. `run` raises
NotImplementedError for a request that the engine does not support.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
from time import perf_counter
from typing import Any


def sentence(error: BaseException) -> str:
    """An exception as one line of text."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def answer(run: Any, request: dict[str, Any]) -> dict[str, Any]:
    """The new tokens and the seconds of a request, or the error message if it is unsupported or fails."""
    try:
        began = perf_counter()
        outputs = run(request)
        return {"outputs": outputs, "seconds": perf_counter() - began}
    except NotImplementedError as error:
        return {"cannot": str(error)}
    except Exception as error:
        return {"error": sentence(error)}


def main(script: str) -> int:
    # engines print to standard output: redirect that to standard error, and keep the pipe for answers
    pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the end of input ends a worker, not Ctrl-C

    def send(what: dict[str, Any]) -> None:
        pipe.write(json.dumps(what) + "\n")
        pipe.flush()

    try:
        about, run = runpy.run_path(script)["start"](json.loads(sys.stdin.readline()))
    except Exception as error:
        send({"error": sentence(error)})
        return 1
    send({"ready": about})
    for line in sys.stdin:
        send(answer(run, json.loads(line)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
