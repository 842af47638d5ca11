"""Finds from the config.json in a folder for which method its draft head was made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from outpace.models.heads.formats.files import HeadFileError, read_config
from outpace.models.heads.formats.folder import layout_of
from outpace.models.heads.formats.position_heads import FORMATS


def kind_in(folder: Path, kinds: Sequence[str]) -> str:
    """The method, which is one of `kinds`. HeadFileError if the folder holds no head or one of another
    kind."""
    config = read_config(folder)
    found = next((name for name, each in FORMATS.items() if each.recognises(config)), None)
    kind = found or layout_of(config).kind
    if kind not in kinds:
        raise HeadFileError(
            f"{folder} holds a head of {kind}: use it with the method {kind}, or give a head of "
            f"{', '.join(kinds[:-1])} or {kinds[-1]}"
        )
    return kind
