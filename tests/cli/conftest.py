"""Fixture that runs commands of the command line in this process."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner


@pytest.fixture
def outpace_(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """Runs `outpace` with these arguments in an empty folder; the result has exit_code, stdout and stderr."""
    from outpace.cli.app import app

    monkeypatch.chdir(tmp_path)

    def run(*arguments: object, given: str | bytes | None = None) -> Any:
        return CliRunner().invoke(app, [str(argument) for argument in arguments], input=given)

    return run


@pytest.fixture
def damaged(tiny: Any, tmp_path: Path) -> Path:
    """A copy of a checkpoint, to be spoilt."""
    return Path(shutil.copytree(tiny.target, tmp_path / "damaged"))
