"""Runs the programs of a documentation page that need a server: starts the page's `outpace serve` on a free
port, runs each of its `python FILE` against it, and stops it.

    python scripts/serve_demo.py README.md docs/serving.md
"""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

SAVED = re.compile(r'^```python title="([^"]+)"\n(.*?)^```', re.MULTILINE | re.DOTALL)
SERVER = re.compile(r"^outpace (serve .*)$", re.MULTILINE)
PROGRAM = re.compile(r"^python (\S+\.py)$", re.MULTILINE)
ADDRESS = re.compile(r"http://\S+:\d+")
WRITTEN = "http://localhost:8000"  # the address in the pages


def run_page(page: Path) -> None:
    """Run a page's programs. CalledProcessError if one fails or the server does not stop properly."""
    text = page.read_text(encoding="utf-8")
    saved, programs = dict(SAVED.findall(text)), PROGRAM.findall(text)
    assert programs, f"{page} has no program to run"
    arguments = shlex.split(SERVER.findall(text)[0])
    command = [sys.executable, "-m", "outpace", *arguments, "--port", "0"]
    print("$", shlex.join(["outpace", *arguments]), flush=True)
    with (
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server,
        TemporaryDirectory() as folder,
    ):
        assert server.stderr is not None
        try:
            found = next((match for line in server.stderr if (match := ADDRESS.search(line))), None)
            if found is None:
                raise subprocess.CalledProcessError(server.wait(), command)
            for name in programs:
                print("$ python", name, flush=True)
                path = Path(folder, name)
                path.write_text(saved[name].replace(WRITTEN, found[0]), encoding="utf-8")
                subprocess.run([sys.executable, str(path)], check=True)
                print(flush=True)
        finally:
            server.send_signal(signal.SIGINT)
            server.stderr.read()  # the rest of its log
    if server.returncode:
        raise subprocess.CalledProcessError(server.returncode, command)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        run_page(Path(argument))
