"""Acceptance of the first draft token and its upper bound over all lossless rules, from untimed decoding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from torch import Tensor

from outpace.bench.measure.first_token_bound import first_token_bound
from outpace.core.claim import Drawn
from outpace.core.contracts import Parts
from outpace.core.sampling_params import SamplingParams
from outpace.engine.engine import Engine
from outpace.sampling.target_probs import LazyTargetProbs

BATCHES = 4  # at most this many batches per workload are decoded
MAX_TOKENS = 24  # new tokens per prompt, in this untimed decoding
ROW_STEPS = 64  # counting stops at this many row-steps per batch

AcceptanceBounds = Mapping[tuple[str, str, float], "AcceptanceBound"]  # (contender, workload, temperature)


@dataclass(frozen=True)
class AcceptanceBound:
    """Sums over row-steps (one row of the batch in one step) in which the draft sampled children of the
    root."""

    row_steps: int = 0
    accepted: int = 0  # row-steps in which one of these children was accepted
    bound: float = 0.0  # sum over row-steps of the largest acceptance probability of any lossless rule

    def __add__(self, other: AcceptanceBound) -> AcceptanceBound:
        return AcceptanceBound(
            self.row_steps + other.row_steps, self.accepted + other.accepted, self.bound + other.bound
        )

    def to_json(self) -> dict[str, Any]:
        steps = self.row_steps
        return {
            "row_steps": steps,
            "any_accepted": self.accepted / steps if steps else None,
            "bound": self.bound / steps if steps else None,
        }


def acceptance_bound(
    parts: Parts, prompts: Sequence[Tensor], sampling: Sequence[SamplingParams]
) -> AcceptanceBound:
    """Decode these prompts and sum the acceptance and the bound of the first draft token over the steps;
    empty if no draft tokens are sampled."""
    found = AcceptanceBound()
    if not parts.drafter.claims or all(params.greedy for params in sampling):
        return found  # deterministic drafts are accepted with the target's probability: nothing to bound
    short = [replace(params, max_tokens=min(MAX_TOKENS, params.max_tokens)) for params in sampling]
    for step in Engine.of(parts, prompts, short).steps():
        tree, claim = step.draft.tree, step.draft.tree.claim
        if not isinstance(claim, Drawn) or step.scores.logits is None or found.row_steps >= ROW_STEPS:
            continue
        target_probs = LazyTargetProbs(step.scores, tree, step.ctx)
        for root in range(tree.forest.num_rows):
            if any(claim.row[child] >= 0 for child in tree.forest.children[root]):
                accepted = step.verdict.leaf[root] != root
                found += AcceptanceBound(1, int(accepted), first_token_bound(tree, target_probs, root))
    return found


class HasAcceptanceBound(Protocol):
    """A contender with an `acceptance_bound`."""

    name: str

    def acceptance_bound(
        self, prompts: Sequence[Tensor], sampling: Sequence[SamplingParams]
    ) -> AcceptanceBound: ...


class HasTokens(Protocol):
    """An encoded prompt and its workload."""

    @property
    def workload(self) -> str: ...
    @property
    def tokens(self) -> Tensor: ...


def acceptance_bounds(
    contenders: Sequence[HasAcceptanceBound],
    groups: Sequence[Sequence[HasTokens]],  # batches, each of one workload
    sampling: SamplingParams,
    temperatures: Sequence[float],
    *,
    seed: int = 0,
) -> dict[tuple[str, str, float], AcceptanceBound]:
    """(Contender, workload, temperature) -> acceptance and bound of the first draft token, at temperatures
    above 0; without entries for contenders whose draft tokens are not sampled."""
    found: dict[tuple[str, str, float], AcceptanceBound] = {}
    chosen: dict[str, list[Sequence[HasTokens]]] = {}
    for group in groups:
        chosen.setdefault(group[0].workload, []).append(group)
    for temperature in (each for each in temperatures if each > 0):
        for workload, batches in chosen.items():
            for contender in contenders:
                total = AcceptanceBound()
                for number, batch in enumerate(batches[:BATCHES]):
                    first = seed + 1009 * number
                    row_params = [
                        replace(sampling, temperature=temperature, seed=first + row)
                        for row in range(len(batch))
                    ]
                    total += contender.acceptance_bound([case.tokens for case in batch], row_params)
                if total.row_steps:
                    found[contender.name, workload, temperature] = total
    return found
