"""What compressed weights cost: `python -m benchmarks.weights`.

The zoo's target reads held-out text, compiled, with each format of weights. Measured are the cross-entropy,
how often the most probable token is another one than with whole weights, and the size of the weights. Speed
is measured by `outpace bench --compile --weights`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

import outpace
from outpace.bench.measure.provenance import provenance, threads
from outpace.bench.report.json_file import write_json
from outpace.console import progress
from outpace.core.contracts import Prompt, Want
from outpace.models.openvino.compressed_weights import FORMATS
from outpace.tables import Table, print_tables
from zoo_training.corpus import read_corpus
from zoo_training.evaluate import DOMAINS, held_out_batches

TARGET, WHOLE, ALL = "zoo:target", "whole", "all"


@dataclass(frozen=True)
class Quality:
    """What a format of weights does to a domain of text."""

    weights: str  # WHOLE or one of FORMATS
    domain: str  # ALL: the mean over domains
    tokens: int
    loss: float  # nats per token
    loss_ratio: float  # over whole weights
    differing: float  # share of tokens before which another token is the most probable one
    megabytes: float  # of the matrices


@dataclass(frozen=True)
class _Read:
    """Sums over the tokens of a domain that count."""

    loss: float
    best: Tensor  # (tokens,) most probable token before each


def texts(domain: str, model: outpace.Model, limit: int) -> Iterator[tuple[Tensor, Tensor]]:
    """(Tokens, whether each counts) of held-out texts: all tokens of code, the answers of tasks."""
    documents = read_corpus().held_out
    for batch in held_out_batches(domain, documents, model.tokenizer, rows=1):
        if limit == 0:
            return
        limit -= 1
        yield batch.tokens[0], batch.weights[0] > 0


def read(model: outpace.Model, items: Sequence[tuple[Tensor, Tensor]]) -> _Read:
    """The loss of a model on texts, and its most probable tokens."""
    loss, best = 0.0, list[Tensor]()
    for tokens, counts in items:
        cache = model.target.open(1, len(tokens) + 1)
        # the last token of a prompt is read with the first draft
        scores = model.target.prefill([Prompt(tokens)], (0,), cache, Want(prompt_logits=True))[1]
        assert scores.logits is not None
        logits = scores.logits.float()[: len(tokens) - 1]
        loss -= float(logits.log_softmax(-1).gather(-1, tokens[1:, None])[counts[1:]].sum())
        best.append(logits.argmax(-1)[counts[1:]])
    return _Read(loss, torch.cat(best))


def compared(
    weights: str, found: dict[str, _Read], whole: dict[str, _Read], megabytes: float
) -> list[Quality]:
    """One row per domain, and one with the means over domains."""
    rows = [
        Quality(
            weights,
            domain,
            len(each.best),
            each.loss / len(each.best),
            each.loss / whole[domain].loss,
            float((each.best != whole[domain].best).float().mean()),
            megabytes,
        )
        for domain, each in found.items()
    ]
    loss = sum(row.loss for row in rows) / len(rows)
    before = sum(each.loss / len(each.best) for each in whole.values()) / len(rows)
    differing = sum(row.differing for row in rows) / len(rows)
    count = sum(row.tokens for row in rows)
    return [*rows, Quality(weights, ALL, count, loss, loss / before, differing, megabytes)]


def to_table(rows: Sequence[Quality]) -> Table:
    """The rows for people."""
    columns = ("weights", "text", "tokens", "loss", "over whole weights", "other token", "MB")
    cells = [
        (
            row.weights,
            row.domain,
            str(row.tokens),
            f"{row.loss:.4f}",
            f"{row.loss_ratio:.4f}",
            f"{row.differing:.2%}",
            f"{row.megabytes:.1f}",
        )
        for row in rows
    ]
    return Table("Compressed weights", columns, tuple(cells))


def main(
    json: Annotated[Path, typer.Option(help="File to write.")],
    target: Annotated[str, typer.Option(help="A model with the tokenizer of the zoo's.")] = TARGET,
    limit: Annotated[int, typer.Option(min=1, help="Most texts of a domain.")] = 100,
    dtype: Annotated[str, typer.Option(help="bfloat16 or float32.")] = "bfloat16",
    number: Annotated[int, typer.Option("--threads", min=1, help="CPU threads.")] = 1,
) -> None:
    """Measure what compressed weights cost."""
    rows: list[Quality] = []
    with threads(number), progress((1 + len(FORMATS)) * len(DOMAINS)) as advance:
        whole: dict[str, _Read] = {}
        for weights in (None, *FORMATS):
            model = outpace.load(target, dtype=dtype, compile=True, weights=weights)
            found: dict[str, _Read] = {}
            for domain in DOMAINS:
                found[domain] = read(model, list(texts(domain, model, limit)))
                advance(f"{weights or WHOLE}, {domain}", 1)
            whole = whole or found
            made = model.target.compressed_weights
            matrices = [each for each in model.target.model.parameters() if each.dim() > 1]
            size = sum(each.nbytes for each in matrices) if made is None else made.num_bytes
            rows += compared(weights or WHOLE, found, whole, size / 1e6)
    print_tables([to_table(rows)])
    settings: dict[str, Any] = {"target": target, "dtype": dtype, "limit": limit}
    json.parent.mkdir(parents=True, exist_ok=True)
    results = [asdict(row) for row in rows]
    write_json(
        json,
        {
            "schema": "outpace-weights/1",
            "provenance": provenance(num_threads=number),
            "settings": settings,
            "results": results,
        },
    )


if __name__ == "__main__":
    typer.run(main)
