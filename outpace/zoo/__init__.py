"""Small language models in the package, trained from scratch by `zoo_training.build`, for demos, tests and
benchmarks."""

import json
from pathlib import Path
from typing import Any

WEIGHTS = Path(__file__).parent / "weights"


def names() -> list[str]:
    """Names of the models in the package, sorted, without the prefix "zoo:"."""
    return sorted(path.parent.name for path in WEIGHTS.glob("*/config.json"))


def path(name: str) -> Path:
    """The folder of a model, for `from_pretrained`; name: "target" or "zoo:target". ValueError if unknown."""
    short = name.removeprefix("zoo:")
    if short not in names():
        known = ", ".join(f"zoo:{other}" for other in names()) or "none: the package has lost its weights"
        raise ValueError(f"There is no zoo model {name!r}; the known ones are {known}.")
    return WEIGHTS / short


def card(name: str) -> dict[str, Any]:
    """The model card (card.json): training data, training run, sizes and measured losses."""
    return json.loads((path(name) / "card.json").read_text(encoding="utf-8"))
