"""Time of the verification rules at a large vocabulary.

Draft trees are sampled from random distributions, so no model is needed. The time of a rule excludes warping
of the target's logits, which is reported separately. "Reading" is one sum over the rows of p and q at the
tree's inner nodes, for comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Annotated

import torch
import typer
from torch import Tensor

from outpace.bench.measure import provenance
from outpace.bench.report.json_file import write_json
from outpace.core.claim import Drawn
from outpace.core.context import Context
from outpace.core.contracts import Plan, Scores, Verifier
from outpace.core.noise import KeyedNoise
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import Shape, TokenTree
from outpace.drafters.model.grow import AddChildren, grow, with_replacement, without_replacement
from outpace.models.table import TableTarget
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.tables import Table, print_tables
from outpace.verifiers.block import Block
from outpace.verifiers.kseq import KSequential
from outpace.verifiers.match import Match
from outpace.verifiers.rejection import Rejection
from outpace.verifiers.traversal import Traversal

DEPTH, SIBLINGS, DRAFTS = 6, 4, 24
CHAIN = Shape.branching((1,) * DEPTH)
SEQUENCES = Shape.branching((SIBLINGS, *[1] * (DEPTH - 1)))
# four siblings at every depth, of which only the first has children
COMB = Shape(
    tuple(
        parent for depth in range(DEPTH) for parent in [SIBLINGS * (depth - 1) + 1 if depth else 0] * SIBLINGS
    )
)


@dataclass(frozen=True)
class RuleCost:
    """Milliseconds of one rule on one shape of tree: medians over drafts, and the slowest draft."""

    rule: str
    tree: str
    verify: float
    slowest: float
    warp: float
    read: float


def cases() -> list[tuple[str, Verifier, str, Shape, AddChildren]]:
    """Every case: name of the rule, verifier, name of the tree, its shape, and how children are sampled."""
    comb, sequences = f"{SIBLINGS} siblings at each of {DEPTH} depths", f"{SIBLINGS} sequences of {DEPTH}"
    chain = f"chain of {DEPTH}"
    return [
        ("match", Match(), comb, COMB, without_replacement),
        ("rejection", Rejection(), chain, CHAIN, without_replacement),
        ("rejection", Rejection(), comb, COMB, without_replacement),
        ("rejection, independent draws", Rejection(), sequences, SEQUENCES, with_replacement),
        ("k-sequential", KSequential(), sequences, SEQUENCES, with_replacement),
        ("block", Block(), chain, CHAIN, without_replacement),
        ("traversal", Traversal(), chain, CHAIN, without_replacement),
        ("traversal", Traversal(), comb, COMB, without_replacement),
        ("traversal, independent draws", Traversal(), sequences, SEQUENCES, with_replacement),
    ]


def measure(
    rule: str,
    verifier: Verifier,
    tree: str,
    shape: Shape,
    children: AddChildren,
    *,
    vocab: int,
    closeness: float,
) -> RuleCost:
    """Time a rule on several drafts; before each timing a large tensor is written, which evicts p and q from
    the CPU caches."""
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(len(shape.parents) + 1, vocab, generator=generator) * 3
    target = base + torch.randn(base.shape, generator=generator) * (1 - closeness)
    other = torch.ones(1 << 24)
    took: list[float] = []
    warped: list[float] = []
    read: list[float] = []
    for turn in range(DRAFTS + 2):
        ctx = _context(turn)
        drafted = grow(ctx, Plan((shape.depth,), shape), _reader(base), children=children)
        target_probs = LazyTargetProbs(Scores(0, target), drafted, ctx)
        other.add_(1)
        began = perf_counter()
        verifier.verify(drafted, target_probs, Scores(0, target), ctx.noise)
        seconds = perf_counter() - began
        inner = [node for node, below in enumerate(drafted.forest.children) if below]
        assert isinstance(drafted.claim, Drawn)
        p, q = target[inner], drafted.claim.q
        other.add_(1)
        began = perf_counter()
        float(p.sum() + q.sum())
        if turn > 1:
            read.append(perf_counter() - began)
            took.append(seconds - float(target_probs.seconds))
            warped.append(float(target_probs.seconds))
    return RuleCost(
        rule, tree, *(1e3 * each for each in (median(took), max(took), median(warped), median(read)))
    )


def _context(turn: int) -> Context:
    tokens, noise = torch.zeros(8, dtype=torch.int64), KeyedNoise([0], [turn], [8])
    cache = TableTarget(2).open(1, 72)  # no model reads the trees
    return Context((tokens,), (8,), (64,), (0,), cache, (SamplingParams(1.0),), noise)


def _reader(logits: Tensor) -> Callable[[TokenTree], tuple[int, Tensor]]:
    seen = 0

    def read(tree: TokenTree) -> tuple[int, Tensor]:
        nonlocal seen
        first, seen = seen, len(tree)
        return first, logits[first : len(tree)]

    return read


def to_table(found: Sequence[RuleCost]) -> Table:
    rows = [
        (
            f"{each.rule}: {each.tree}",
            *(f"{value:.2f}" for value in (each.verify, each.slowest, each.warp, each.read)),
        )
        for each in found
    ]
    columns = ("milliseconds", "rule", "slowest draft", "warping p", "reading p and q")
    return Table("Verification at a large vocabulary", columns, tuple(rows))


def times(
    vocab: Annotated[int, typer.Option(help="Tokens of the vocabulary.")] = 128_000,
    closeness: Annotated[float, typer.Option(help="Of p to q: 1 makes them equal, 0 unrelated.")] = 0.5,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.")] = None,
    json: Annotated[Path | None, typer.Option(help="File to write.")] = None,
) -> None:
    """Time each verification rule on random drafts over a large vocabulary."""
    with provenance.threads(threads), torch.inference_mode():
        found = [measure(*case, vocab=vocab, closeness=closeness) for case in cases()]
        print_tables([to_table(found)])
        if json:
            data = {
                "schema": "outpace-rules/1",
                "provenance": provenance.provenance(),
                "settings": {"vocab": vocab, "closeness": closeness},
                "milliseconds": [{**asdict(each), "over_reading": each.verify / each.read} for each in found],
            }
            write_json(json, data)
