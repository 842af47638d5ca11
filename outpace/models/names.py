"""Model names: the package's own models (zoo:target), folders, and names on the Hugging Face Hub."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

ZOO = "zoo:"
# target -> draft with the target's vocabulary, draft with another vocabulary
DRAFTS = {"zoo:target": ("zoo:draft", "zoo:draft-2k")}
WEIGHTS = Path(str(files("outpace"))) / "zoo" / "weights"
HEADS = WEIGHTS.parent / "heads"
CONFIGS = ("config.json", "adapter_config.json")  # one of them is in the folder of a model or head


def usual_draft(target: str, *, cross_vocabulary: bool = False) -> str | None:
    """Name of the package's draft model for a zoo target; with `cross_vocabulary` the one with another
    vocabulary. None for other targets, and if the draft model's weights are missing."""
    name = DRAFTS[target][cross_vocabulary] if target in DRAFTS else ""
    return name if (WEIGHTS / name.removeprefix(ZOO) / "config.json").is_file() else None


def packaged_heads(target: str) -> list[str]:
    """Names of the package's draft heads for a zoo target; none for other targets."""
    return [f"{ZOO}{path.name}" for path in _models_in(HEADS)] if target in DRAFTS else []


def is_model(folder: Path) -> bool:
    """Whether a folder holds a model, an adapter or a draft head."""
    return any((folder / config).is_file() for config in CONFIGS)


def resolve(name: str) -> str:
    """The folder of a `zoo:` name, or the name itself with ~ expanded. ValueError for an empty name and an
    unknown `zoo:` name."""
    if not name.strip():
        raise ValueError(
            "the model's name is empty: give zoo:target, a folder, or a name on the Hugging Face Hub"
        )
    if not name.startswith(ZOO):
        return str(Path(name).expanduser()) if name.startswith("~") else name
    for parent in (WEIGHTS, HEADS):
        if is_model(parent / name.removeprefix(ZOO)):
            return str(parent / name.removeprefix(ZOO))
    models, heads = _named_in(WEIGHTS), _named_in(HEADS)
    known = f"the models {models} and the draft heads {heads}" if models and heads else models or heads
    raise ValueError(f"there is no {name}; the package has {known or 'none: its weights are missing'}")


def _named_in(parent: Path) -> str:
    return ", ".join(f"{ZOO}{path.name}" for path in _models_in(parent))


def _models_in(parent: Path) -> list[Path]:
    return [path for path in sorted(parent.glob("*")) if is_model(path)]
