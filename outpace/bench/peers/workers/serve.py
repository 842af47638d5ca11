"""The worker's side of the pipe: `python serve.py ENGINE.py`, run by the interpreter that has the engine.

ENGINE.py defines `start(settings)`, which loads the models and returns `(about, run)`: facts that go into the
answer to the settings, and a function from a request to lists of new tokens. Lines of JSON go both ways: the
settings first, then a request at a time until the input ends. `run` raises NotImplementedError for a request
the engine has no way to serve.
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
    """An error in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def answer(run: Any, request: dict[str, Any]) -> dict[str, Any]:
    """New tokens and seconds, or why there are none."""
    try:
        began = perf_counter()
        outputs = run(request)
        return {"outputs": outputs, "seconds": perf_counter() - began}
    except NotImplementedError as error:
        return {"cannot": str(error)}
    except Exception as error:
        return {"error": sentence(error)}


def main(script: str) -> int:
    # engines write what they like on the output: give them the error stream, and keep the pipe
    pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the end of the input is what ends a worker

    def tell(what: dict[str, Any]) -> None:
        pipe.write(json.dumps(what) + "\n")
        pipe.flush()

    try:
        about, run = runpy.run_path(script)["start"](json.loads(sys.stdin.readline()))
    except Exception as error:
        tell({"error": sentence(error)})
        return 1
    tell({"ready": about})
    for line in sys.stdin:
        tell(answer(run, json.loads(line)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
