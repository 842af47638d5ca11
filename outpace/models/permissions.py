"""Permissions of the files of a written model."""

from __future__ import annotations

from pathlib import Path


def share_weights(folder: Path) -> None:
    """Let everybody read the weights in a folder who may read its configuration: safetensors lets nobody but
    their owner, so that a server with a user of its own could not load them."""
    mode = next(folder.glob("*.json")).stat().st_mode
    for file in folder.glob("*.safetensors"):
        file.chmod(mode)
