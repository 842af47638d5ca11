"""JSON files that are written whole or not at all, and hold only what JSON knows."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Whole or not at all: an interruption while writing leaves the file that was there before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".part")
    draft.write_text(json.dumps(finite(data), indent=1) + "\n", encoding="utf-8")
    os.replace(draft, path)


def finite(value: Any) -> Any:
    """JSON knows no NaN: null instead."""
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    if isinstance(value, Mapping):
        return {str(name): finite(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(each) for each in value]
    return value
