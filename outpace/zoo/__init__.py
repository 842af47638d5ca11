"""Small language models and draft heads in the package, trained by `zoo_training`, for demos, tests and
benchmarks."""

import json
from pathlib import Path
from typing import Any

WEIGHTS = Path(__file__).parent / "weights"
HEADS = Path(__file__).parent / "heads"
CONFIGS = ("config.json", "adapter_config.json")  # of a model, and of an adapter to one


def names() -> list[str]:
    """Names of the models in the package, sorted, without the prefix "zoo:"."""
    return sorted({path.parent.name for file in CONFIGS for path in WEIGHTS.glob(f"*/{file}")})


def head_names() -> list[str]:
    """Names of the draft heads in the package, sorted, without the prefix "zoo:"."""
    return sorted(path.parent.name for path in HEADS.glob("*/config.json"))


def path(name: str) -> Path:
    """The folder of a model, for `from_pretrained`, or of a draft head; name: "target" or "zoo:target".
    ValueError if unknown."""
    short = name.removeprefix("zoo:")
    for parent, found in ((WEIGHTS, names()), (HEADS, head_names())):
        if short in found:
            return parent / short
    known = ", ".join(f"zoo:{other}" for other in [*names(), *head_names()])
    known = known or "none: the package has lost its weights"
    raise ValueError(f"There is no zoo model {name!r}; the known ones are {known}.")


def card(name: str) -> dict[str, Any]:
    """What is known of a model (card.json): training data, training run, sizes and measured losses; of a
    draft head (training.json): settings, data, and agreement with the target on held-out texts."""
    folder = path(name)
    file = "training.json" if folder.parent == HEADS else "card.json"
    return json.loads((folder / file).read_text(encoding="utf-8"))
