"""Model names: the package's own models (zoo:target), folders, and names on the Hugging Face Hub."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

ZOO = "zoo:"
# target -> draft with the target's vocabulary, draft with another vocabulary
DRAFTS = {"zoo:target": ("zoo:draft", "zoo:draft-2k")}
WEIGHTS = Path(str(files("outpace"))) / "zoo" / "weights"


def usual_draft(target: str, *, cross_vocabulary: bool = False) -> str | None:
    """Name of the package's draft model for a zoo target; with `cross_vocabulary` the one with another
    vocabulary. None for other targets, and if the draft model's weights are missing."""
    name = DRAFTS[target][cross_vocabulary] if target in DRAFTS else ""
    return name if (WEIGHTS / name.removeprefix(ZOO) / "config.json").is_file() else None


def resolve(name: str) -> str:
    """The folder of a `zoo:` name, or the name itself with ~ expanded. ValueError for an empty name and an
    unknown `zoo:` name."""
    if not name.strip():
        raise ValueError(
            "the model's name is empty: give zoo:target, a folder, or a name on the Hugging Face Hub"
        )
    if not name.startswith(ZOO):
        return str(Path(name).expanduser()) if name.startswith("~") else name
    folder = WEIGHTS / name.removeprefix(ZOO)
    if not (folder / "config.json").is_file():
        known = sorted(f"{ZOO}{path.parent.name}" for path in WEIGHTS.glob("*/config.json"))
        raise ValueError(
            f"there is no model {name}; the package has {', '.join(known) or 'none: its weights are missing'}"
        )
    return str(folder)
