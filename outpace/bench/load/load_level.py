"""How much load a server gets: requests at a rate, or a fixed number of concurrent streams."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import ClassVar


@dataclass(frozen=True)
class RequestRate:
    """Requests per second, sent whether or not earlier ones have been answered (open loop)."""

    value: float
    axis: ClassVar[str] = "requests per second"

    @property
    def label(self) -> str:
        return f"{self.value:g} request{'s' if self.value != 1 else ''}/s"


@dataclass(frozen=True)
class Concurrency:
    """Concurrent streams, each of which sends its next request when the last one has ended (closed loop)."""

    value: int
    axis: ClassVar[str] = "concurrent streams"

    @property
    def label(self) -> str:
        return f"{self.value} stream{'s' if self.value > 1 else ''}"


LoadLevel = RequestRate | Concurrency


def parse_levels(rates: str | None, concurrency: str | None) -> list[LoadLevel]:
    """The levels in `--rates` and `--concurrency`, numbers separated by commas, in ascending order: rates
    first. ValueError if a number is malformed or not positive."""
    levels: list[LoadLevel] = []
    try:
        levels += [RequestRate(value) for value in sorted({float(each) for each in _pieces(rates)})]
    except ValueError as error:
        raise ValueError(f"--rates takes numbers separated by commas, as in 1,2,4, not {rates!r}") from error
    try:
        levels += [Concurrency(value) for value in sorted({int(each) for each in _pieces(concurrency)})]
    except ValueError as error:
        raise ValueError(
            f"--concurrency takes whole numbers separated by commas, as in 1,4,16, not {concurrency!r}"
        ) from error
    if wrong := [level.label for level in levels if not (isfinite(level.value) and level.value > 0)]:
        raise ValueError(f"a load of {wrong[0]} cannot be measured: give positive numbers")
    return levels


def _pieces(text: str | None) -> list[str]:
    return text.split(",") if text else []
