"""Finds from the configuration and the tensors in a folder for which method its draft head was made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from outpace.models.heads.formats.fields import check_fields
from outpace.models.heads.formats.files import HeadFileError, read_config, read_names
from outpace.models.heads.formats.folder import layout_of
from outpace.models.heads.formats.position_heads import FORMATS


def kind_in(folder: Path, kinds: Sequence[str]) -> str:
    """The method, which is one of `kinds`. HeadFileError, which says what the folder holds instead, if it
    holds no head or one of another kind."""
    wanted = " or ".join(filter(None, (", ".join(kinds[:-1]), kinds[-1])))
    kind = kind_of_folder(folder)
    if kind is None:
        names = read_config(folder).get("architectures")
        architecture = names[0] if isinstance(names, list) and names else "of an unknown kind"
        raise HeadFileError(
            f"{folder} holds a model ({architecture}) and no draft head: give it as a draft model, to a "
            f"method with the option draft, or give a head of {wanted}"
        )
    if kind not in kinds:
        raise HeadFileError(
            f"{folder} holds a head of {kind}: use it with the method {kind}, or give a head of {wanted}"
        )
    return kind


def kind_of_folder(folder: Path) -> str | None:
    """The method for which the head in a folder was made; None for another kind of model. HeadFileError for a
    folder without a configuration and tensors that can be read."""
    config = read_config(folder)
    check_fields(config, folder)
    if found := next((name for name, each in FORMATS.items() if each.recognises(config)), None):
        return found
    layout = layout_of(config, read_names(folder))
    return None if layout is None else layout.kind
