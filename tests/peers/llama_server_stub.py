"""A stand-in for llama-server, which tests cannot build: it answers as that does, or fails in a way that an
environment variable names."""

from __future__ import annotations

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FAILS = os.environ.get("STUB_FAILS", "")


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer(200, json.dumps({"status": "ok", "model_ftype": "Q4_0"}))

    def do_POST(self) -> None:
        request: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if FAILS == "crash" and "--spec-type" in sys.argv:
            os._exit(3)
        if FAILS == "garbage":
            return self._answer(200, "<html>a proxy</html>")
        if FAILS == "refuse":
            return self._answer(400, json.dumps({"error": {"message": "the context is too small"}}))
        if FAILS == "no tokens":
            return self._answer(200, json.dumps({"content": "text"}))
        tokens = [token % 7 for token in request["prompt"]][: request["n_predict"]]
        tokens += [1] * (request["n_predict"] - len(tokens))
        if not request["ignore_eos"]:
            tokens = tokens[:3]
        self._answer(200, json.dumps({"tokens": tokens, "stop_type": "limit" if len(tokens) > 3 else "eos"}))

    def _answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: Any) -> None:
        pass


if __name__ == "__main__":
    if "--version" in sys.argv:
        print("version: 7 (build of the stub)", file=sys.stderr)
        sys.exit(0)
    if FAILS == "start":
        print("error: unknown model architecture: 'nobody'\nexiting", file=sys.stderr)
        sys.exit(1)
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
