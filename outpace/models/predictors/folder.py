"""Reads and writes folders with predictors: `config.json` and `model.safetensors`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from outpace.models.heads.formats.files import CONFIG, HeadFileError, fill, read_files, write_files
from outpace.models.predictors.predictor import Pair, Predictor, PredictorError

METHOD, DRAFT, TARGET = "outpace_predictor", "outpace_draft", "outpace_target"

Kind = TypeVar("Kind", bound=Predictor)


def save_predictor(predictor: Predictor, folder: str | Path) -> None:
    """Write a predictor; the folder is made if there is none."""
    config = {METHOD: predictor.method, **predictor.sizes}
    if predictor.trained_for is not None:
        pair = {DRAFT: predictor.trained_for.draft, TARGET: predictor.trained_for.target}
        config |= {name: value for name, value in pair.items() if value is not None}
    write_files(Path(folder), config, dict(predictor.named_parameters()))


def load_predictor(kind: type[Kind], folder: str | Path) -> Kind:
    """Read a predictor of this class, in float32. PredictorError if the folder holds none."""
    if not isinstance(folder, str | Path):
        raise PredictorError(f"give the {kind.noun} as a folder, not as {type(folder).__name__}")
    path = Path(folder)
    make = f"make one with {kind.training_command()}"
    if not path.is_dir():
        raise PredictorError(f"there is no folder {path}: {make}")
    try:
        config, tensors = read_files(path)
    except HeadFileError as error:
        raise PredictorError(f"{path} holds no {kind.noun}: {make}") from error
    method = config.get(METHOD)
    if method != kind.method:
        what = f"holds no {kind.noun}" if method is None else f"holds a predictor for {method}"
        raise PredictorError(f"{path} {what}: give a folder with one for {kind.method}, or {make}")
    predictor = _sized(kind, config, path)
    try:
        fill(dict(predictor.named_parameters()), tensors, "the predictor that it describes")
    except HeadFileError as error:
        raise PredictorError(f"{path} cannot be used: {error}") from error
    if not all(bool(parameter.isfinite().all()) for parameter in predictor.parameters()):
        raise PredictorError(
            f"{path} has weights that are not finite numbers: train it again, or restore its files"
        )
    if config.get(TARGET):
        draft = config.get(DRAFT)
        predictor.trained_for = Pair(None if draft is None else str(draft), str(config[TARGET]))
    return predictor.eval()


def _sized(kind: type[Kind], config: Mapping[str, Any], path: Path) -> Kind:
    sizes = {name: value for name, value in config.items() if name not in (METHOD, DRAFT, TARGET)}
    try:
        return kind(**sizes)
    except (TypeError, RuntimeError) as error:
        raise PredictorError(f"{path / CONFIG} does not describe a predictor: restore it") from error
