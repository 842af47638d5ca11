"""A target for tests of training runs."""

from __future__ import annotations

from typing import Any

import pytest

import outpace
from outpace.api.model import Model


@pytest.fixture
def model(tiny: Any) -> Model:
    return outpace.load(tiny.target, dtype="float32")
