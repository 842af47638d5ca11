"""Write JSON files atomically, with NaN and infinities as null."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write a temporary file in the same folder, then rename it to `path`: an interruption leaves the
    previous file intact."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".part")
    draft.write_text(json.dumps(finite(data), indent=1) + "\n", encoding="utf-8")
    os.replace(draft, path)


def finite(value: Any) -> Any:
    """A copy with NaN and infinities replaced by None (null in JSON), keys as strings and tuples as lists."""
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    if isinstance(value, Mapping):
        return {str(name): finite(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(each) for each in value]
    return value
