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
# target -> method -> draft head, or several, separated by commas
USUAL_HEADS = {
    "zoo:target": {
        "eagle": "zoo:eagle",
        "eagle2": "zoo:eagle",
        "fr-spec": "zoo:eagle",
        "scylla": "zoo:eagle",
        "hass": "zoo:hass",
        "eagle3": "zoo:eagle3",
        "medusa": "zoo:medusa",
        "hydra": "zoo:hydra",
        "mlp-speculator": "zoo:mlp-speculator",
        "redrafter": "zoo:redrafter",
        "taps": "zoo:eagle,zoo:hass",
    }
}


def usual_draft(target: str, *, cross_vocabulary: bool = False) -> str | None:
    """Name of the package's draft model for a zoo target; with `cross_vocabulary` the one with another
    vocabulary. None for other targets, and if the draft model's weights are missing."""
    name = DRAFTS[target][cross_vocabulary] if target in DRAFTS else ""
    return name if (WEIGHTS / name.removeprefix(ZOO) / "config.json").is_file() else None


def usual_head(target: str, method: str) -> str | None:
    """Name of the package's draft head for a zoo target and a method; several are separated by commas. None
    for other targets, and if their weights are missing."""
    names = USUAL_HEADS.get(target, {}).get(method, "")
    folders = [HEADS / name.removeprefix(ZOO) for name in names.split(",")]
    return names if all((folder / "config.json").is_file() for folder in folders) else None


def is_model(folder: Path) -> bool:
    """Whether a folder holds a model, an adapter or a draft head."""
    return any((folder / each).is_file() for each in CONFIGS)


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
    return ", ".join(f"{ZOO}{path.name}" for path in sorted(parent.glob("*")) if is_model(path))
