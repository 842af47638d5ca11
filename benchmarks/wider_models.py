"""Models that write the text of small ones at the cost of larger ones: `python -m benchmarks.wider_models`.

Timings of the zoo's models are dominated by what a step costs outside the matrices. This program adds columns
to every MLP whose output weights are zero: the model computes the same function with more weights and more
arithmetic, so drafts are accepted as before. Works for models with gated MLPs (Llama, Qwen, SmolLM).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

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
        old = weights[name]
        if "down_proj" in name:
            weight.zero_()
            weight[:, :own] = old
        elif weight.shape != old.shape:
            weight.normal_(0, STANDARD_DEVIATION, generator=generator)
            weight[:own] = old
        else:
            weight.copy_(old)
    return wide.eval()


def main(
    source: Annotated[str, typer.Argument(help="Model: zoo:NAME or a folder.")],
    output: Annotated[Path, typer.Argument(help="Folder to write.")],
    intermediate_size: Annotated[int, typer.Argument(help="Columns of the MLPs of the new model.")],
) -> None:
    """Write a model with wider MLPs that computes what the given one does."""
    folder = resolve(source)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    try:
        wide = widened(model, intermediate_size)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    wide.save_pretrained(output)
    AutoTokenizer.from_pretrained(folder).save_pretrained(output)
    typer.echo(f"{output}: {sum(each.numel() for each in wide.parameters()) / 1e6:.1f} million parameters")


if __name__ == "__main__":
    typer.run(main)
