"""Models that write the text of small ones at the cost of larger ones: `python -m benchmarks.wider_models`.

Timings of the zoo's models are dominated by what a step costs outside the matrices. This program adds columns
to every MLP whose output weights are zero: the model computes the same function with more weights and more
arithmetic, so drafts are accepted as before. Works for models with gated MLPs (Llama, Qwen, SmolLM), and for
draft heads, whose decoder layer gets the columns that are asked for; with its own number it stays as it is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

import outpace
from outpace.models.adapter import base_of
from outpace.models.checkpoint import load_checkpoint
from outpace.models.fingerprint import KEY, target_fingerprint
from outpace.models.heads.formats.files import read_files, write_files
from outpace.models.names import resolve

STANDARD_DEVIATION = 0.02  # of the added input weights


def widened(model: PreTrainedModel, intermediate_size: int) -> PreTrainedModel:
    """A model with MLPs of `intermediate_size` that computes the same logits. ValueError if that is not
    larger than the model's own size."""
    own = model.config.intermediate_size
    if intermediate_size <= own:
        raise ValueError(f"the model's MLPs have {own} columns: give a larger number than {own}")
    config = type(model.config).from_dict(model.config.to_dict() | {"intermediate_size": intermediate_size})
    wide: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=model.dtype)
    weights = model.state_dict()
    generator = torch.Generator().manual_seed(0)
    for name, weight in wide.state_dict().items():
        weight.copy_(_widened(name, weights[name], weight.shape, generator))
    return wide.eval()


def widen_head(source: Path, output: Path, target: Path, intermediate_size: int) -> None:
    """Write a draft head for a wider target; its decoder layer gets MLPs of `intermediate_size`."""
    config, tensors = read_files(source)
    generator = torch.Generator().manual_seed(0)
    for name, tensor in tensors.items():
        shape = list(tensor.shape)
        if ".mlp." in name:
            shape["down_proj" in name] = intermediate_size
        tensors[name] = _widened(name, tensor, torch.Size(shape), generator)
    wide = outpace.load(str(target)).target
    write_files(output, _with_size(config, intermediate_size) | {KEY: target_fingerprint(wide)}, tensors)


def _widened(name: str, old: Tensor, shape: torch.Size, generator: torch.Generator) -> Tensor:
    """A weight of an MLP with more columns, or any other weight as it is."""
    if shape == old.shape:
        return old
    new = old.new_zeros(shape)
    if "down_proj" in name:
        new[:, : old.shape[1]] = old
    else:
        new.normal_(0, STANDARD_DEVIATION, generator=generator)
        new[: len(old)] = old
    return new


def _with_size(config: Any, intermediate_size: int) -> Any:
    if not isinstance(config, dict):
        return config
    found = {name: _with_size(value, intermediate_size) for name, value in config.items()}
    return found | ({"intermediate_size": intermediate_size} if "intermediate_size" in config else {})


def main(
    source: Annotated[str, typer.Argument(help="Model or draft head: zoo:NAME or a folder.")],
    output: Annotated[Path, typer.Argument(help="Folder to write.")],
    intermediate_size: Annotated[int, typer.Argument(help="Columns of the MLPs of the new model.")],
    target: Annotated[
        Path | None, typer.Option(help="For a draft head: the wider target, written before.")
    ] = None,
) -> None:
    """Write a model with wider MLPs that computes what the given one does."""
    folder = resolve(source)
    if target is not None:
        widen_head(Path(folder), output, target, intermediate_size)
        typer.echo(f"{output}: a draft head for {target}")
        return
    stored = AutoConfig.from_pretrained(resolve(base_of(folder) or folder)).dtype
    model, tokenizer = load_checkpoint(folder, dtype=stored or "auto", device="cpu")
    try:
        wide = widened(model, intermediate_size)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    wide.save_pretrained(output)
    tokenizer.save_pretrained(output)
    typer.echo(f"{output}: {sum(each.numel() for each in wide.parameters()) / 1e6:.1f} million parameters")


if __name__ == "__main__":
    typer.run(main)
