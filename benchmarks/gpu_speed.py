"""A short benchmark for a machine with a GPU: `python -m benchmarks.gpu_speed --out DIR`.

Plain decoding, speculative sampling and prompt lookup against transformers' `generate`, on CUDA if available,
with the package's models. Writes gpu.json and gpu.md; stops after `--seconds` and reports the runs so far.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

import torch

from outpace.bench.measure.contender import mode_of
from outpace.bench.measure.ideal import DRAFT, TARGET
from outpace.bench.measure.line_up import contenders, method_contenders
from outpace.bench.measure.measurement import Measurement, StopMeasurement
from outpace.bench.measure.provenance import provenance
from outpace.bench.measure.run import Run, encode_prompts
from outpace.bench.measure.workload import BUILT_IN, load_items
from outpace.bench.report.json_file import write_json
from outpace.bench.report.report import to_json, to_markdown
from outpace.bench.report.tables import tables
from outpace.core.sampling_params import SamplingParams
from outpace.models.checkpoint import load_checkpoint
from outpace.models.hf.target import HFTarget, load
from outpace.models.names import resolve
from outpace.recipes import parse_methods
from outpace.recipes._option_kinds import FunctionOpener
from outpace.tables import print_tables

METHODS = "speculative-sampling:depth=4,prompt-lookup:depth=8:allow_shorter=true"


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_speed", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--target", default="zoo:target")
    parser.add_argument("--draft", default="zoo:draft")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--num-prompts", type=int, default=4, help="of each built-in set")
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=170.0, help="for everything")
    return parser.parse_args(arguments)


def prepare(given: argparse.Namespace) -> tuple[Measurement, dict[tuple[str, str], HFTarget]]:
    """The measurement, with models loaded and prompts encoded, and the models whose forwards are timed."""
    names = {"target": resolve(given.target), "draft": resolve(given.draft)}
    target, tokenizer = load(names["target"], dtype=given.dtype, device=given.device)
    draft, _ = load(names["draft"], dtype=given.dtype, device=given.device)
    dtype = next(target.model.parameters()).dtype
    peers = {
        kind: load_checkpoint(name, dtype=dtype, device=given.device)[0].eval()
        for kind, name in names.items()
    }
    found, choices = method_contenders(
        parse_methods(given.methods), target, given.draft, FunctionOpener(lambda name: draft)
    )
    end = getattr(tokenizer, "eos_token_id", None)
    sampling = SamplingParams(max_tokens=given.max_tokens, stop=() if end is None else (int(end),))
    items = [item for name in BUILT_IN for item in load_items(name, given.num_prompts)]
    cases, left_out = encode_prompts(items, tokenizer, found[0], sampling, max_length=target.max_length)
    measurement = Measurement(
        contenders=contenders(found, peers),
        cases=cases,
        sampling=sampling,
        temperatures=[0.0, 1.0],
        rounds=given.rounds,
        batch=1,
        seed=0,
        choices=choices,
        provenance={**provenance(given.device), "dtype": str(dtype).removeprefix("torch.")},
        settings={"target": given.target, "draft": given.draft, "methods": given.methods},
        left_out=left_out,
    )
    return measurement, {(TARGET, mode_of(target)): target, (DRAFT, mode_of(target)): draft}


def main(arguments: Sequence[str] | None = None) -> int:
    given = options(arguments)
    began = monotonic()
    try:
        measurement, targets = prepare(given)
    except ValueError as error:  # a missing model, or an unknown method
        print(f"gpu_check: {error}", file=sys.stderr)
        return 2

    def in_time(run: Run) -> None:
        if monotonic() - began > given.seconds:
            raise StopMeasurement

    measurement.measure(targets, after=in_time)
    rows = measurement.rows()
    write_json(given.out / "gpu.json", to_json(measurement, rows))
    (given.out / "gpu.md").write_text(to_markdown(measurement, rows), encoding="utf-8")
    print_tables(tables(rows))
    if measurement.error:
        raise measurement.error
    print(
        f"{len(measurement.runs)} of {measurement.total} runs in {monotonic() - began:.0f} s; "
        f"{given.out / 'gpu.md'}"
    )
    return 0 if rows else 1


if __name__ == "__main__":
    sys.exit(main())
