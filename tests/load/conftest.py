"""Fixtures: a stub server that no proxy stands before."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.load.stub_server import StubServer, stub_server


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[StubServer]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with stub_server() as started:
        yield started
