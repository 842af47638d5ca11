"""How often a drafted token is kept at all, beside how often that could be: looked at before anything is timed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from torch import Tensor

from outpace.analysis.tree_bounds import first_token_bound
from outpace.core.claim import Drawn
from outpace.core.contracts import Parts
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.sampling.target_probs import LazyTargetProbs

GROUPS, TOKENS, ROW_STEPS = (
    4,
    24,
    64,
)  # batches of a workload, new tokens of each prompt, steps of a batch at the most

Bounds = Mapping[tuple[str, str, float], "Best"]  # (contender, workload, temperature)


@dataclass(frozen=True)
class Best:
    """Sums over row-steps in which tokens were drawn below the root."""

    row_steps: int = 0
    kept: int = 0  # of them, those in which a drafted token was kept
    most: float = 0.0  # sum of the largest chances for it that any exact rule could give

    def __add__(self, other: Best) -> Best:
        return Best(self.row_steps + other.row_steps, self.kept + other.kept, self.most + other.most)

    def to_json(self) -> dict[str, Any]:
        steps = self.row_steps
        return {
            "row_steps": steps,
            "any_accepted": self.kept / steps if steps else None,
            "bound": self.most / steps if steps else None,
        }


def look(parts: Parts, prompts: Sequence[Tensor], sampling: Sequence[SamplingParams]) -> Best:
    """Decode these prompts and bound every step's first token."""
    found = Best()
    if not parts.drafter.claims or all(params.greedy for params in sampling):
        return found  # tokens that are chosen are kept as often as the target says them: nothing to bound
    short = [replace(params, max_tokens=min(TOKENS, params.max_tokens)) for params in sampling]
    for step in Session(parts, prompts, short, LazyTargetProbs).steps():
        tree, claim = step.draft.tree, step.draft.tree.claim
        if not isinstance(claim, Drawn) or step.scores.logits is None or found.row_steps >= ROW_STEPS:
            continue
        target_probs = LazyTargetProbs(step.scores, tree, step.ctx)
        for root in range(tree.forest.num_rows):
            if any(claim.row[child] >= 0 for child in tree.forest.children[root]):
                kept = step.verdict.leaf[root] != root
                found += Best(1, int(kept), first_token_bound(tree, target_probs, root))
    return found


class Bounded(Protocol):
    """A contender that can be looked at."""

    name: str

    def look(self, prompts: Sequence[Tensor], sampling: Sequence[SamplingParams]) -> Best: ...


class Prompted(Protocol):
    """A prompt of some workload."""

    @property
    def workload(self) -> str: ...
    @property
    def tokens(self) -> Tensor: ...


def look_at_all(
    contenders: Sequence[Bounded],
    groups: Sequence[Sequence[Prompted]],  # batches of one workload each
    sampling: SamplingParams,
    temperatures: Sequence[float],
    *,
    seed: int = 0,
) -> dict[tuple[str, str, float], Best]:
    """The first batches of every workload with every contender, where it samples."""
    found: dict[tuple[str, str, float], Best] = {}
    chosen: dict[str, list[Sequence[Prompted]]] = {}
    for group in groups:
        chosen.setdefault(group[0].workload, []).append(group)
    for temperature in (each for each in temperatures if each > 0):
        for workload, batches in chosen.items():
            for contender in contenders:
                total = Best()
                for number, batch in enumerate(batches[:GROUPS]):
                    first = seed + 1009 * number
                    row_params = [
                        replace(sampling, temperature=temperature, seed=first + row)
                        for row in range(len(batch))
                    ]
                    total += contender.look([case.tokens for case in batch], row_params)
                if total.row_steps:
                    found[contender.name, workload, temperature] = total
    return found
