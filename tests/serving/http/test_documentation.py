"""The programs of the documentation that need a server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/serving.md"])
def test_the_programs_of_a_page_run_against_its_server(page: str) -> None:
    command = [sys.executable, "scripts/serve_demo.py", page]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "$ outpace serve" in done.stdout and "$ python" in done.stdout
