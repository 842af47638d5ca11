"""The generation memory of one step: what the target and the draft model hold and allocate besides their
weights.

Letters: B rows, V vocabulary size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from outpace.core.context import Context
from outpace.core.contracts import Cache, Target
from outpace.models.forward.kv_cache import MAX_SLICED_MASK
from outpace.models.hf.forward_memory import ForwardMemory
from outpace.models.hf.target import CHUNK

# copies of a node's probabilities while a sampled token is chosen: scaled logits, probabilities, sorted ones
PROBS = 4
DRAFT_COPIES = 2  # copies of a level's draft logits while its most probable tokens are found
# share of a budget that the temporary tensors of a forward over a part of a prompt may need, and the least
# number of tokens of a part: with fewer, every forward reads all weights for next to nothing
READING, FEWEST = 0.25, 16


@dataclass(frozen=True, slots=True)
class Footprint:
    """Generation memory in bytes, by purpose; an upper estimate."""

    target_kv: int  # the target's KV cache with this step's nodes
    draft_kv: int  # that of the draft model
    growth: int  # the part of a slot's old memory whose entries are being copied to larger memory
    last_step: int  # logits and probabilities of the last step, which its record holds
    outputs: int  # logits and probabilities of this step
    activations: int  # temporary tensors of a layer
    masks: int  # attention masks and position ids

    @property
    def total(self) -> int:
        """The most memory at one time: temporary tensors of layers are freed before logits are computed."""
        held = self.target_kv + self.draft_kv + self.growth + self.last_step + self.masks
        return held + max(self.outputs, self.activations)


def prompt_part(memory: int, *models: Target) -> int:
    """Most prompt tokens that one forward of these models reads with `memory` bytes of generation memory;
    FEWEST to CHUNK."""
    token = max(1, *(ForwardMemory.of(model).token for model in models))
    return max(FEWEST, min(CHUNK, int(READING * memory) // token))


class ModelDrafter(Protocol):
    """A drafter with a language model and a KV cache of its own."""

    model: Target

    def cache(self, ctx: Context) -> Cache:
        """The model's KV cache, with a slot for each slot of the target's; opened if there is none."""
        ...

    def forget(self, slots: Sequence[int]) -> None:
        """Empty these slots of the KV cache."""
        ...


class StepMemory:
    """Computes the footprint of a step from the depth of its drafts.

    KV memory is what the caches themselves report for a length; the rest follows from the configurations of
    the models. Drafts are the tree with `sizes[d]` nodes at depth d + 1, cut at a depth, in each row.
    `prompt_tokens`: most tokens that the draft model lacks and reads in one forward.
    """

    def __init__(
        self, target: Target, drafter: ModelDrafter, sizes: Sequence[int], prompt_tokens: int = CHUNK
    ) -> None:
        self._drafter, self._prompt_tokens = drafter, prompt_tokens
        self._target, self._draft = ForwardMemory.of(target), ForwardMemory.of(drafter.model)
        self.nodes = [sum(sizes[:depth]) for depth in range(len(sizes) + 1)]  # draft nodes by depth
        self._last = 0  # bytes that the record of the last step holds
        self._longest = 0  # cache positions for which both models have position ids and masks

    def scored(self, nodes: int, sampled: int, longest: int) -> None:
        """Record how many nodes the last step scored, how many of them in rows that are sampled, and how many
        cache positions of its longest row."""
        self._last = nodes * self._target.logits + sampled * self._target.probs
        self._longest = max(self._longest, longest)

    def of(self, ctx: Context, depths: Sequence[int]) -> Footprint:  # (B,)
        """The footprint of a step in which each row drafts to this depth."""
        target, draft, drafts = self._target, self._draft, any(depths)
        cache, other = ctx.cache, self._drafter.cache(ctx)
        nodes = [1 + self.nodes[depth] for depth in depths]
        unread = [len(tokens) for tokens in ctx.unread] if ctx.unread else [0] * len(nodes)
        ends = [length - 1 + count for length, count in zip(ctx.committed, nodes, strict=True)]
        target_kv, target_grown = _held(cache, ctx.slots, ends)
        # the draft model does not read the deepest level of its own draft
        drafted = [1 + self.nodes[max(0, depth - 1)] for depth in depths]
        read = [
            length - 1 + count if drafts else 0 for length, count in zip(ctx.committed, drafted, strict=True)
        ]
        draft_kv, draft_grown = _held(other, ctx.slots, read)
        tokens = [count + gap for count, gap in zip(nodes, unread, strict=True)]
        sampled = sum(n for n, params in zip(nodes, ctx.sampling, strict=True) if not params.greedy)
        outputs = sum(nodes) * 2 * target.logits + sampled * PROBS * target.probs
        activations = sum(tokens) * target.token
        longest = max(self._longest, *ends) * 5 // 4 + MAX_SLICED_MASK
        masks = target.pair * sum(n * end for n, end in zip(tokens, ends, strict=True))
        if drafts:
            lengths = zip(ctx.committed, ctx.slots, strict=True)
            gap = min(self._prompt_tokens, sum(length - other.lengths[slot] for length, slot in lengths))
            outputs = max(outputs, sum(drafted) * (draft.logits + DRAFT_COPIES * draft.probs))
            activations = max(activations, (gap + sum(drafted)) * draft.token)
            masks = max(masks, draft.pair * (gap + sum(drafted)) * max(ends))
        masks += (target.position + draft.position) * longest
        growth = round(max(target_grown * target.copied, draft_grown * draft.copied))
        return Footprint(target_kv, draft_kv, growth, self._last, outputs, activations, masks)

    def level_bytes(self, ctx: Context, row: int, level: int) -> int:
        """What the nodes of a row at this level need in both caches and as logits, apart from the other
        rows."""
        slot, before = ctx.slots[row], ctx.committed[row] + self.nodes[level - 1]
        nodes = self.nodes[level] - self.nodes[level - 1]
        caches = (ctx.cache, self._drafter.cache(ctx))
        grown = (each.slot_bytes(slot, before + nodes) - each.slot_bytes(slot, before) for each in caches)
        return sum(grown) + nodes * (self._target.logits + self._draft.logits)


def _held(cache: Cache, slots: Sequence[int], ends: Sequence[int]) -> tuple[int, int]:
    """Memory of the cache's slots with `ends` cache positions, and the most that one of them holds before it
    grows."""
    held = cache.num_bytes
    growth = 0
    for slot, end in zip(slots, ends, strict=True):
        before, after = cache.slot_bytes(slot, 0), cache.slot_bytes(slot, end)
        if after > before:
            held, growth = held + after - before, max(growth, before)
    return held, growth
