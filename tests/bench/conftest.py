"""Benchmarks of the tests run as on an idle machine."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0), raising=False)


@pytest.fixture
def undisturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times that contradict each other, as on a machine that is busy after all, are no sign of anything."""
    for limit in ("CONTRADICTION", "UNEQUAL"):
        monkeypatch.setattr(f"outpace.bench.measure.disturbance.{limit}", float("inf"))
