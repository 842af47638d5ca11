"""Times forwards of Llama models with random weights, by rows and context:
`python -m benchmarks.shape_forwards`.

For devices on which no checkpoint is at hand: how long a forward takes depends on the model's sizes alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from outpace.bench.measure.forward_cost import measure_forwards
from outpace.bench.measure.provenance import provenance
from outpace.bench.report.json_file import write_json
from outpace.console import progress
from outpace.models.hf.target import HFTarget
from outpace.tables import Table, print_tables

# hidden size, MLP size, layers, query heads, key heads, vocabulary
SHAPES = {
    "llama-8b": (4096, 14336, 32, 32, 8, 128256),
    "llama-1b": (2048, 8192, 16, 32, 8, 128256),
    "tiny": (32, 64, 2, 4, 2, 128),
}
MODES = {True: "compiled", False: "eager"}


def random_model(shape: str, dtype: str, device: str, longest: int) -> PreTrainedModel:
    """A Llama model of this shape, made on the device."""
    hidden, inner, layers, heads, key_heads, vocab = SHAPES[shape]
    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        vocab_size=vocab,
        max_position_embeddings=longest,
        tie_word_embeddings=False,
    )
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype)).eval()


def measure(given: argparse.Namespace) -> list[dict[str, Any]]:
    """A row of milliseconds by tokens per row for each mode, number of rows and context."""
    longest = max(given.contexts) + 1 + max(given.sizes)
    model = random_model(given.shape, given.dtype, given.device, longest)
    found: list[dict[str, Any]] = []
    with progress(len(MODES) * len(given.rows) * len(given.contexts)) as advance:
        for compiled, mode in MODES.items():
            target = HFTarget(model, compile=compiled)
            for context in given.contexts:
                for rows in given.rows:
                    timings = measure_forwards(
                        {0: target}, length=context, rows=rows, sizes=given.sizes, repeats=given.repeats
                    )
                    found.append(
                        {
                            "mode": mode,
                            "rows": rows,
                            "context": context,
                            "milliseconds": timings[0].curve.to_json(),
                        }
                    )
                    advance(f"{mode}, {rows} rows", 1)
    return found


def numbers(text: str) -> list[int]:
    """Parse numbers separated by commas; ValueError if one is below 1."""
    found = [int(each) for each in text.split(",")]
    if min(found) < 1:
        raise ValueError("give numbers of at least 1")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.shape_forwards", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--shape", choices=list(SHAPES), default="llama-8b")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rows", type=numbers, default="1,8,32")
    parser.add_argument(
        "--contexts", type=numbers, default="256,4096", help="tokens read before, of each row"
    )
    parser.add_argument("--sizes", type=numbers, default="1,2,4,8,16,32", help="tokens of a row in a forward")
    parser.add_argument("--repeats", type=int, default=3, help="of every size")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    rows = measure(given)
    if given.json:
        settings = {name: getattr(given, name) for name in ("shape", "dtype", "sizes", "repeats")}
        write_json(given.json, {"rows": rows, "settings": settings, "provenance": provenance(given.device)})
    lines = [
        (
            row["mode"],
            str(row["rows"]),
            str(row["context"]),
            *map("{:.1f}".format, row["milliseconds"].values()),
        )
        for row in rows
    ]
    title = f"Milliseconds of a forward of {given.shape}, {given.dtype}, by tokens of each row"
    print_tables([Table(title, ("forward", "rows", "context", *map(str, sorted(given.sizes))), tuple(lines))])
    return 0


if __name__ == "__main__":
    sys.exit(main())
