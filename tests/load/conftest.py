"""Fixtures: stub servers, and `outpace load` in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.load.stub_server import StubServer


@pytest.fixture
def start_stub() -> Iterator[Callable[[], StubServer]]:
    """Starts a stub server, which is closed when the test has ended."""
    started: list[StubServer] = []

    def start() -> StubServer:
        started.append(StubServer())
        return started[-1]

    yield start
    for stub in started:
        stub.close()


@pytest.fixture
def stub(start_stub: Callable[[], StubServer]) -> StubServer:
    return start_stub()


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Result]:
    """Runs `outpace load` with these arguments in an empty folder, with few requests that come fast."""
    from outpace.cli.app import app

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("OUTPACE_API_KEY", raising=False)

    def run(*arguments: object) -> Result:
        short = ("--rates", "1000", "--num-requests", 4, "--rounds", 1)
        return CliRunner().invoke(app, ["load", *map(str, [*short, *arguments])])

    return run
