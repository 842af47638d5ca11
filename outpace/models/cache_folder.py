"""The folder in which outpace keeps models that it converted or compressed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def cache_folder(environment: Mapping[str, str], kind: str) -> Path:
    """The folder for this kind of converted models: outpace/`kind` below XDG_CACHE_HOME or ~/.cache."""
    cache = environment.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    return Path(cache) / "outpace" / kind
